"""The NPU in vLLM: platform, worker, model runner, collectives. Not run on hardware.

On a machine without an NPU all of it runs on the simulated device of
:mod:`ascend_ops_core.testing.simulated_npu`, which a process gets when ``ASCEND_SIMULATED_NPU``
asks for it.
"""
