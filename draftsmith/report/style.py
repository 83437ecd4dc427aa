"""The report's colours and its style sheet."""

from __future__ import annotations

# Text has a contrast of at least 4.5 : 1 with its background (paper, soft), marks one of 3 : 1; a test computes them.
# Rules between rows are only decoration.
LIGHT = {
    "ink": "#1c2330",
    "paper": "#ffffff",
    "soft": "#eef1f6",
    "rule": "#d5dae3",
    "mute": "#566072",
    "good": "#18794e",
    "bad": "#b42318",
    "warn": "#8a5c00",
    "blue": "#3b6fb6",
    "sand": "#a86f00",
    "leaf": "#2c7f55",
}
DARK = {
    "ink": "#e6e9ef",
    "paper": "#171a21",
    "soft": "#232833",
    "rule": "#3a4150",
    "mute": "#a3acbb",
    "good": "#58c08c",
    "bad": "#f08a80",
    "warn": "#e0b252",
    "blue": "#7fa7dd",
    "sand": "#dba94f",
    "leaf": "#62b88b",
}


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0 .75rem; } .mute { color: var(--mute); }
.verdict { font-weight: 600; } .passed { color: var(--good); } .failed { color: var(--bad); }
.incomplete { color: var(--warn); }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .35rem .5rem;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; } th { font-weight: 600; }
.checks th, td.verdict { white-space: nowrap; } .facts th { width: 12rem; overflow-wrap: normal; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem 2rem;
  align-items: start; }
.wide { overflow-x: auto; } figure { margin: 0; } svg { display: block; width: 100%; }
.bars td, .bars th { border: 0; padding: .1rem .5rem .1rem 0; font-size: .875rem; vertical-align: middle; }
.bars { table-layout: fixed; } .bars th { font-weight: 400; width: 6.5rem; } .bars .number { width: 5.5rem; }
caption { text-align: left; padding-bottom: .25rem; color: var(--mute); }
.bar, rect.target { fill: var(--blue); } rect.shared { fill: var(--sand); } rect.drafter { fill: var(--leaf); }
rect.gap { fill: var(--paper); }
.legend { list-style: none; margin: .5rem 0; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; }
svg.swatch { display: inline-block; width: 12px; height: 12px; }
.taps { width: auto; border-collapse: separate; border-spacing: 4px; font-size: .875rem; }
.taps td, .taps th { border: 0; padding: .2rem .5rem; white-space: nowrap; } .taps td { background: var(--soft); }
.taps .here, .taps .wrong { font-weight: 600; } .taps .here { box-shadow: inset 0 0 0 2px var(--good); }
.taps th:first-child { position: sticky; left: 0; background: var(--paper); padding-left: 0; }
.taps .wrong { box-shadow: inset 0 0 0 2px var(--bad); }
@media (max-width: 40rem) { .checks thead { display: none; } .facts th { width: 6.5rem; }
  .checks tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--rule); }
  .checks td { display: block; border: 0; padding: .1rem 0; } .checks td:nth-child(-n+2) { display: inline; } }
"""
)
