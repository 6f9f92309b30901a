"""Weights that other tools wrote: torch.save, PyTorch DCP, safetensors, Hugging Face folders."""
