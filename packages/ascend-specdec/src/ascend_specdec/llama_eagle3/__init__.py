"""Eagle3 drafts of one Llama layer, for targets that are rotated (QuaRot) or not."""
