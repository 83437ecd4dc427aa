"""What an export does on a real GPU: proofs and times, ours and those of onnxruntime-genai's own builder."""
