# The exporter and its proof on the CPU: docker build -t draftsmith . (--build-arg EXTRAS= leaves the proof out)
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim
ARG EXTRAS=cpu,verify
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)${EXTRAS:+[$EXTRAS]}" && draftsmith --version
RUN useradd --create-home --uid 1000 draftsmith
# What comes from the Hub is kept where any user may write; mount a volume there to keep it for longer.
ENV HF_HOME=/tmp/huggingface
USER 1000
WORKDIR /work
ENTRYPOINT ["draftsmith"]
CMD ["--help"]
