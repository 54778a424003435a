"""Where there is no TorchTPU, what needs it is not collected: `make test-torch-tpu` runs it."""

from tests import framework

collect_ignore = (
    [] if framework.TORCH_TPU else ["test_device.py", "test_observer.py", "test_process_group.py", "test_trace.py"]
)
