"""accelerate's own tests of its launcher (accelerate.test_utils.scripts), each of their functions in a run. What fails
there is not for TPUs, or fails in the same way with torch_xla alone; `NOT_HERE` has the reason."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests.launch.launching import run

pytestmark = [pytest.mark.process, pytest.mark.timeout(280), pytest.mark.usefixtures("fresh_session", "libraries")]
FUNCTIONS = {
    "test_ops": (
        *("test_gather", "test_gather_object", "test_gather_non_contiguous", "test_broadcast"),
        *("test_pad_across_processes", "test_reduce_sum", "test_reduce_mean", "test_reduce_max", "test_op_checker"),
        "test_copy_tensor_to_devices",
    ),
    "test_script": (
        *("process_execution_check", "init_state_check", "rng_sync_check", "dl_preparation_check"),
        *("central_dl_preparation_check", "custom_sampler_check", "check_seedable_sampler"),
        *("check_seedable_sampler_in_batch_sampler_shard", "check_seedable_sampler_with_data_seed", "training_check"),
        *("test_split_between_processes_list", "test_split_between_processes_nested_dict"),
        *("test_split_between_processes_tensor", "test_split_between_processes_evenly", "test_trigger"),
        "test_reinstantiated_state",
    ),
    "test_distributed_data_loop": (
        *("test_default_ensures_even_batch_sizes", "test_can_disable_even_batches", "test_can_join_uneven_inputs"),
        *("test_join_can_override_even_batches", "test_join_can_override_for_mixed_type_dataloaders"),
        "test_join_raises_warning_for_iterable_when_overriding_even_batches",
        *("test_join_raises_warning_for_non_ddp_distributed", "test_pickle_accelerator", "test_data_loader"),
        *("test_stateful_dataloader", "test_stateful_dataloader_save_state"),
    ),
    "test_sync": (
        *(
            "test_noop_sync",
            "test_distributed_sync",
            "test_distributed_sync_multiple_fwd",
            "test_gradient_accumulation",
        ),
        *("test_gradient_accumulation_with_opt_and_scheduler", "test_dataloader_break"),
    ),
}
TWO = "it wants two processes"
DDP = "join_uneven_inputs is for DistributedDataParallel: on XLA it warns, and changes nothing"
SYNC = "it takes DistributedDataParallel's wrapper for granted, which averages gradients in backward()"
LOADER = "accelerate's loader for XLA has no state_dict, and reads ahead: its state is later than the loop's"
OBJECTS = 'accelerate: "gather objects in TPU is not supported"'
# (function, ranks, 0: any number): why it cannot pass.
NOT_HERE = {
    ("central_dl_preparation_check", 0): "accelerate does not call it on XLA: no dispatcher of batches there",
    ("check_seedable_sampler_in_batch_sampler_shard", 1): TWO,
    ("training_check", 0): "torch_xla alone gives the same other digits; its second half asks for fp16",
    ("test_split_between_processes_list", 0): OBJECTS,
    ("test_split_between_processes_tensor", 0): OBJECTS,
    ("test_default_ensures_even_batch_sizes", 1): TWO,
    ("test_can_disable_even_batches", 1): TWO,
    ("test_can_join_uneven_inputs", 1): TWO,
    ("test_join_can_override_even_batches", 0): DDP,
    ("test_join_can_override_for_mixed_type_dataloaders", 0): DDP,
    ("test_join_raises_warning_for_iterable_when_overriding_even_batches", 0): DDP,
    ("test_pickle_accelerator", 1): TWO,
    ("test_stateful_dataloader", 0): LOADER,
    ("test_stateful_dataloader_save_state", 0): LOADER,
    ("test_noop_sync", 2): SYNC,
    ("test_distributed_sync", 0): SYNC,
    ("test_distributed_sync_multiple_fwd", 2): SYNC,
    ("test_gradient_accumulation", 0): SYNC,
    ("test_gradient_accumulation_with_opt_and_scheduler", 2): SYNC,
}


def called(script: str, name: str) -> None:
    from accelerate import Accelerator, PartialState

    module: Any = importlib.import_module(f"accelerate.test_utils.scripts.{script}")
    function = getattr(module, name)
    wanted = list(inspect.signature(function).parameters)
    if wanted == ["state"]:
        function(PartialState())
    elif wanted == ["accelerator"]:
        function(Accelerator())
    elif wanted == ["data_loader", "accelerator"]:
        function(torch.utils.data.DataLoader(module.DummyDataset(), batch_size=module.BATCH_SIZE), Accelerator())
    else:
        if script == "test_script":
            Accelerator()
        function()


def wrong(script: str, ranks: int) -> dict[str, str]:
    """What has failed and should not, or the other way round."""
    found = {}
    for name in FUNCTIONS[script]:
        try:
            run(called, script, name, workers=ranks, timeout=100.0)
            failed = ""
        except Exception as error:
            failed = str(error)
        reason = NOT_HERE.get((name, 0)) or NOT_HERE.get((name, ranks), "")
        if bool(failed) != bool(reason):
            found[name] = failed or f"it passes, although: {reason}"
    return found


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("script", FUNCTIONS)
def test_accelerates_own_tests(script: str, ranks: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert wrong(script, ranks) == {}


def test_each_reason_is_of_a_function() -> None:
    names = {name for names in FUNCTIONS.values() for name in names}
    assert {name for name, _ranks in NOT_HERE} <= names and all(NOT_HERE.values())
