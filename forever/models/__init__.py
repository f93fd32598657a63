"""The network: loading backbones, adapters, and flat views of what is trained."""
