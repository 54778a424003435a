"""Random states, seeding calls, and seeding in a notebook without starting the runtime."""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from tpu_magics.backends.torch import randomness, runtime
from tpu_magics.backends.torch.cpu_only import patch_training_arguments
from tpu_magics.backends.torch.post_import import PostImport

from .forked_scenarios import in_worker

pytestmark = pytest.mark.process

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _kept():
    state = randomness.random_state()
    yield
    randomness.set_random_state(state)
    randomness.undo_deferred_seeds()


# -- states ---------------------------------------------------------------------------------------------------------
DRAWS = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1)}


def stream():
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()


def test_a_state_that_is_put_back_gives_the_same_numbers():
    state = randomness.random_state()
    first = stream()
    assert not randomness.same_numbers(state, randomness.random_state())
    randomness.set_random_state(state)
    assert randomness.same_numbers(state, randomness.random_state())
    assert stream() == first


@pytest.mark.parametrize("kind", DRAWS)
def test_only_what_was_drawn_from_counts(kind):
    before = randomness.random_state()
    assert randomness.drawn(before, randomness.random_state()) is None
    DRAWS[kind]()
    first, last = randomness.drawn(before, randomness.random_state())
    assert [name for name in DRAWS if getattr(first, name) is not None] == [kind]
    assert not randomness.same_drawn(first, randomness.random_state())
    assert randomness.same_drawn(last, randomness.random_state())
    for other in set(DRAWS) - {kind}:
        DRAWS[other]()
    assert randomness.same_drawn(last, randomness.random_state())
    after_others = randomness.random_state()
    randomness.set_random_state(first)
    assert randomness.same_drawn(first, randomness.random_state())
    changed, _ = randomness.drawn(after_others, randomness.random_state())
    assert [name for name in DRAWS if getattr(changed, name) is not None] == [kind]


def modes():
    return randomness.random_state()


def test_modes_count_and_are_not_put_back():
    state = modes()
    assert randomness.same_modes(state, modes())
    torch.set_default_dtype(torch.float64)
    try:
        assert not randomness.same_modes(state, modes())
        assert randomness.same_numbers(state, modes())
        randomness.set_random_state(state)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with context:
            assert not randomness.same_modes(state, modes()), context
    found: list[bool] = []

    def in_thread():  # the default device is a thread's own
        torch.set_default_device("meta")
        found.append(randomness.same_modes(state, modes()))
        torch.set_default_device(None)
        found.append(randomness.same_modes(state, modes()))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert found == [False, True]


def test_a_replaced_registration_of_parameters_is_a_mode():
    accelerate = pytest.importorskip("accelerate")
    state = modes()
    with accelerate.init_empty_weights():
        assert not randomness.same_modes(state, modes())
    assert randomness.same_modes(state, modes())


# -- seeding calls --------------------------------------------------------------------------------------------------
def test_which_functions_seed():
    accelerate = pytest.importorskip("accelerate.utils")
    transformers = pytest.importorskip("transformers")
    import torch_xla
    import torch_xla.core.xla_model as xm

    device = (torch.cuda.manual_seed, torch.cuda.manual_seed_all, torch_xla.manual_seed, xm.set_rng_state)
    host = (random.seed, np.random.seed, torch.manual_seed, torch.random.manual_seed, accelerate.set_seed)
    for function in (*host, transformers.set_seed):
        assert randomness.is_seed_call(function), function
        assert not randomness.seeds_device_only(function), function
    for function in device:
        assert randomness.is_seed_call(function), function
        assert randomness.seeds_device_only(function), function
    for function in (random.random, torch.seed, torch.rand, np.random.rand, print, None, random.Random(1).seed):
        assert not randomness.is_seed_call(function), function


def test_seeding_calls_leave_the_accelerator_alone():
    accelerate = pytest.importorskip("accelerate.utils")
    import torch_xla.core.xla_model as xm

    original = xm.set_rng_state
    torch.backends.cudnn.benchmark = True
    with randomness.seeds_without_runtime():
        accelerate.set_seed(11, deterministic=True)
        torch.backends.cudnn.benchmark = False
        first = stream()
        assert torch.are_deterministic_algorithms_enabled()
    assert xm.set_rng_state is original
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    random.seed(11), np.random.seed(11), torch.manual_seed(11)
    assert stream() == first
    assert not runtime.running()


def test_an_error_inside_puts_the_original_back():
    import torch_xla.core.xla_model as xm

    original = xm.set_rng_state
    with pytest.raises(ValueError, match="inside"), randomness.seeds_without_runtime():
        assert xm.set_rng_state is not original
        raise ValueError("inside")
    assert xm.set_rng_state is original


# -- after an import ------------------------------------------------------------------------------------------------
def test_a_callback_after_an_import(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 1\nname = __spec__.loader.get_filename()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "imported_later", raising=False)
    found: list[int] = []
    hook = PostImport()
    hook.when_imported("imported_later", lambda module: found.append(module.value))
    assert hook in sys.meta_path
    assert found == []
    module = importlib.import_module("imported_later")
    assert found == [1]
    assert hook not in sys.meta_path
    assert Path(module.name) == tmp_path / "imported_later.py"
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert importlib.reload(module).value == 1
    assert found == [1]
    hook.when_imported("imported_later", lambda module: found.append(2))
    assert found == [1, 2]
    monkeypatch.delitem(sys.modules, "imported_later")


def test_looking_for_a_module_imports_nothing_and_is_no_import(tmp_path, monkeypatch):
    (tmp_path / "looked_for.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[object] = []
    hook = PostImport()
    hook.when_imported("looked_for", found.append)
    assert importlib.util.find_spec("looked_for") is not None
    with pytest.raises(RuntimeError, match="imported"):
        importlib.import_module("looked_for")
    (tmp_path / "looked_for.py").write_text("value = 2  # longer than before\n")
    importlib.invalidate_caches()
    assert importlib.import_module("looked_for").value == 2
    assert len(found) == 1
    hook.remove()
    monkeypatch.delitem(sys.modules, "looked_for")


def test_a_module_that_is_not_there(monkeypatch):
    hook = PostImport()
    hook.when_imported("there_is_no_such_module", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        importlib.import_module("there_is_no_such_module")
    hook.remove()
    assert hook not in sys.meta_path


# -- versions that differ -------------------------------------------------------------------------------------------
def test_versions_without_what_is_changed_are_told():
    module = types.SimpleNamespace(TrainingArguments=type("TrainingArguments", (), {}))
    assert patch_training_arguments(module, lambda: True) == (
        "TrainingArguments in this version of transformers has no `_setup_devices` (5.23 has it), so creating one may "
        "start the XLA runtime in the notebook. Create it inside the training function."
    )
    state = randomness._SeedGuard(pid=os.getpid())
    randomness._defer_seeding(types.ModuleType(randomness.XLA_MODEL), state, lambda: True)
    assert state.problems == [
        "This version of torch_xla has no torch_xla.core.xla_model.set_rng_state, so setting a seed may start the "
        "accelerator's runtime in the notebook. Set the seed inside the training function."
    ]


# -- the notebook ---------------------------------------------------------------------------------------------------
def test_nothing_is_imported_to_be_quiet():
    code = """
import sys
from tpu_magics.backends.torch import randomness, runtime
randomness.defer_seeds()
randomness.defer_seeds()
print(sorted({"torch", "numpy", "transformers", "accelerate", "torch_xla"} & set(sys.modules)))
print(len([one for one in sys.meta_path if type(one).__name__ == "PostImport"]), randomness.deferral_problems())
randomness.undo_deferred_seeds()
print(len([one for one in sys.meta_path if type(one).__name__ == "PostImport"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "1 []", "0"]


def runtime_up() -> bool:
    return runtime.running()


def scenario_set_seed_is_recorded_and_replayed():
    import accelerate.utils
    import torch_xla
    import torch_xla.core.xla_model as xm

    original, imported_before = xm.set_rng_state, torch.manual_seed
    randomness.defer_seeds()
    randomness.defer_seeds()
    assert randomness.recorded_seed() is None
    accelerate.utils.set_seed(5)
    torch_xla.manual_seed(6)
    accelerate.utils.set_seed(7)
    first = stream()
    assert not runtime_up()
    assert randomness.recorded_seed() == 7
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    assert stream() == first
    with randomness.seeds_without_runtime():
        accelerate.utils.set_seed(8)
    assert randomness.recorded_seed() == 7

    def worker():
        randomness.replay_seed()
        assert xm.get_rng_state() == 7
        accelerate.utils.set_seed(9)
        assert xm.get_rng_state() == 9
        assert randomness.recorded_seed() == 7

    in_worker(worker)
    randomness.adopt_seed(11)  # where a run ended
    assert randomness.recorded_seed() == 11
    imported_before(3)
    assert randomness.recorded_seed() == 7
    assert not runtime_up()
    randomness.undo_deferred_seeds()
    assert xm.set_rng_state is original
    assert randomness.recorded_seed() is None


def scenario_training_arguments_made_in_the_notebook(imported_before: bool = True):
    if imported_before:
        import transformers.training_args
    randomness.defer_seeds()
    import transformers
    from transformers import Seq2SeqTrainingArguments, TrainingArguments

    made = [
        TrainingArguments(output_dir="out", bf16=True, per_device_train_batch_size=4),
        TrainingArguments(output_dir="out", use_cpu=True),
        Seq2SeqTrainingArguments(output_dir="out"),
    ]
    made.append(copy.deepcopy(made[0]))
    assert randomness.deferral_problems() == []
    for arguments in made:
        assert str(arguments.device) == "cpu"
        assert (arguments.world_size, arguments.process_index, arguments.local_process_index) == (1, 0, 0)
        assert (arguments.n_gpu, arguments.train_batch_size) == (0, arguments.per_device_train_batch_size)
        assert arguments.should_log and arguments.should_save
        assert arguments.distributed_state.device == arguments.device
        assert arguments.parallel_mode.value == "not_parallel"
        arguments.to_dict(), repr(arguments), arguments.get_process_log_level()
    assert not runtime_up()

    def worker():
        from accelerate import PartialState

        assert made[0].distributed_state.device.type == "xla"
        assert made[0].world_size == 1
        assert {str(arguments.device) for arguments in made} == {"xla:0"}  # so it is for arguments made here
        assert all(isinstance(arguments.distributed_state, PartialState) for arguments in made)
        assert str(TrainingArguments(output_dir="out").device) == "xla:0"
        assert made[0].n_gpu == 0

    in_worker(worker)
    assert not runtime_up()
    randomness.undo_deferred_seeds()
    assert not hasattr(transformers.Trainer.__init__, "__wrapped__")
    assert "distributed_state" not in vars(TrainingArguments)
    assert type(vars(TrainingArguments)["_setup_devices"]).__name__ == "cached_property"


def scenario_arguments_of_the_notebook_beside_an_accelerator():
    """The arguments' own way to set up would reset the state of the Accelerator that the worker has built."""
    randomness.defer_seeds()
    from accelerate import Accelerator
    from transformers import TrainingArguments

    arguments = TrainingArguments(output_dir="out")

    def worker():
        accelerator = Accelerator()
        assert arguments.device == accelerator.device
        assert arguments.world_size == accelerator.num_processes
        assert accelerator.state.distributed_type == accelerator.distributed_type

    in_worker(worker)


def scenario_training_arguments_imported_later():
    for name in [name for name in sys.modules if name == "transformers" or name.startswith("transformers.")]:
        del sys.modules[name]
    scenario_training_arguments_made_in_the_notebook(imported_before=False)


def scenario_a_trainer_with_arguments_of_the_notebook():
    """The arguments are made before the fork, the Trainer in the worker: it trains on the XLA device there."""
    randomness.defer_seeds()
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="unused", max_steps=2, report_to=[], save_strategy="no", optim="adamw_torch", disable_tqdm=True
    )

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, labels=None):
            found = self.layer(x)
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    model = Model()
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8

    def worker():
        trainer = Trainer(model, arguments, train_dataset=rows)
        assert trainer.train().global_step == 2
        assert next(model.parameters()).device.type == "xla"

    in_worker(worker)
    assert not runtime_up()


def scenario_a_trainer_made_before():
    """It started the runtime, and goes on as it was."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(output_dir="unused", report_to=[], disable_tqdm=True)
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8

    class Model(torch.nn.Module):
        def forward(self, x, labels=None):
            return {"loss": (x.sum() - labels.sum()) ** 2, "logits": x}

    trainer = Trainer(Model(), arguments, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    assert runtime_up()
    randomness.defer_seeds()
    assert trainer.evaluate()["eval_loss"] == before


def test_scenario(scenario, outcomes):
    assert outcomes[scenario] == ""
