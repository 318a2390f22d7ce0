"""DeepSeek-V3 and R1: multi-head latent attention, grouped routing, MTP."""
