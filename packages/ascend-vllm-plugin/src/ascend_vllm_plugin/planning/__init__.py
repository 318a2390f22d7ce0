"""Planning before serving: where a card's memory goes, and whether a checkpoint fits its config.

Reads ``config.json`` and the headers of safetensors files, never a weight, and imports no vLLM.
Nothing is imported here, so that what needs no torch can be read without it:
``plan.make_plan`` is the plan, ``advice.refusal`` why it does not fit,
``checkpoint.check_checkpoint`` the check.
"""
