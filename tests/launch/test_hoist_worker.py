"""In the worker: where a build there would differ from the notebook's, it is made there, and that is reported."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from .hoisting import BACKEND, Notebook, both, in_worker, same, states

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    BACKEND.prepare()
    yield
    assert not BACKEND.runtime_initialized()


@pytest.fixture
def notebook():
    made = Notebook()
    before = states()
    yield made
    assert states() == before, "hoisting left something behind"


REST = "return bits(model), stream(), losses(model), stream()"
NAMES = """
SIZES = {"width": 4}
class Sized(nn.Module):
    width = 4
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(self.size(), SIZES["width"])
    def size(self): return self.width
    def forward(self, x): return self.layers(x)
def change_sizes(): SIZES["width"] = 4.0 and 4; SIZES["height"] = 3
def change_class(): Sized.width = True and 4; Sized.size = lambda self: 4
def change_environ(c): c.depth = 9
def set_layers(): globals()["layers"] = 7
"""

# What stands before the build; the build; what is reported.
NUMBERS = "random numbers were drawn or seeded between line 3 and the build"
FALLBACKS = {
    "torch drawn": ("torch.rand(1)", "Net(4)", NUMBERS),
    "torch seeded in a way that is not followed": ("exec('torch.manual_seed(8)')", "Net(4)", NUMBERS),
    "default dtype": (
        "torch.set_default_dtype(torch.float64)",
        "Net(4).float(); torch.set_default_dtype(torch.float32)",
        "the default dtype, the default device or the gradient mode is not what it was in the notebook",
    ),
    "gradient mode": (
        "torch.set_grad_enabled(True)\n    mode = torch.inference_mode(); mode.__enter__()",
        "copy.deepcopy(Net(4)); mode.__exit__(None, None, None); model = Net(4)",
        "the default dtype, the default device or the gradient mode is not what it was in the notebook",
    ),
    "a global that the class reads": (
        "change_sizes()",
        "Sized()",
        "`SIZES`, which its code reads, is not what it was in the notebook",
    ),
    "a method of the class": (
        "change_class()",
        "Sized()",
        "self.size of `Sized`, which its code reads, is not what it was in the notebook",
    ),
    "a config that is changed by a function": (
        "c = Config()\n    change_environ(c)",
        "Net(4, c.depth, c=c)",
        "argument 2 is not what it was in the notebook",
    ),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_differs_is_built_in_the_worker(notebook, case):
    before, build, reason = FALLBACKS[case]
    notebook.run(NAMES)
    plan = notebook.plan_of(f"\ndef train():\n    seed(3)\n    {before}\n    model = {build}\n    {REST}\n")
    assert "model" in plan.models, plan.warnings()
    off, on = both(notebook, plan)
    assert on.value == off.value
    assert on.declined[0] == (0, reason)


def test_a_global_with_the_name_of_an_attribute_does_not_matter(notebook):
    notebook.run(NAMES)
    same(
        notebook,
        notebook.plan_of("""
        def train():
            seed(3)
            set_layers()
            model = Sized()
            return bits(model), stream(), losses(model), stream()
    """),
    )


def test_numbers_that_the_build_does_not_draw_do_not_matter(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(3)
            np.random.rand(2), random.random()
            model = Net(4)
            return bits(model), stream(), losses(model), stream()
    """)
    same(notebook, plan)


def test_numbers_of_python_and_numpy_that_the_build_draws(notebook):
    plan = notebook.plan_of(
        """
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                first = torch.tensor([random.random(), np.random.rand()])
                self.first = nn.Parameter(first + torch.rand(2))
        def train(change):
            seed(3)
            if change:
                random.random()
            model = Mixed()
            return bits(model), stream()
    """,
        "train",
        False,
    )
    same(notebook, plan, "train", False)
    same(notebook, plan, "train", True, declined=[(0, NUMBERS.replace("line 3", "line 8"))])


def test_python_numbers_that_are_not_seeded_differ_between_workers(notebook):
    """Python reseeds `random` in each fork: a model drawn from it was another in each worker, and still is."""
    plan = notebook.plan_of("""
        class Drawn(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Parameter(torch.tensor([random.random()]))
        def train():
            model = Drawn()
            return bits(model)
    """)
    on, other = both(notebook, plan)[1], both(notebook, plan)[1]
    assert on.value != other.value
    assert on.declined == [(0, "random numbers were drawn or seeded between line 6 and the build")]


def test_a_whole_that_is_built_again_has_parts_of_its_own(notebook):
    """The notebook's parts have gone through the build of the whole, which marks them."""
    notebook.run("""
        class Marking(nn.Module):
            def __init__(self, config, inner):
                super().__init__()
                inner.marks = getattr(inner, "marks", 0) + 1
                self.inner, self.extra = inner, nn.Linear(config.width, 2)
        config = Config()
        def change(): config.depth = 5
        def train(changing):
            seed(1)
            if changing:
                change()
            model = Marking(config, nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Net(4)))
            return bits(model), model.inner.marks, stream()
    """)
    plan = notebook.plan("train", False)
    assert list(plan.models) == ["model"]
    for changing, declined in ((False, []), (True, [(0, "argument 1 is not what it was in the notebook")])):
        assert same(notebook, plan, "train", changing, declined=declined)[1] == 1


def test_parts_that_differ_are_reported_once(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(3)
            torch.rand(1)
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            return bits(model), stream(), losses(model), stream()
    """)
    same(notebook, plan, declined=[(0, NUMBERS)])


def test_a_line_with_parts_that_runs_again(notebook):
    notebook.run("""
        def train():
            seed(3)
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            return bits(model), model
        def twice():
            first, second = train(), train()
            shared = {id(p) for p in first[1].parameters()} & {id(p) for p in second[1].parameters()}
            return first[0], second[0], len(shared)
    """)
    plan = notebook.plan("train")
    on = in_worker(notebook.names["twice"], plan)
    assert on.value[0] == on.value[1]
    assert on.value[2] == 0
    assert on.declined == [(0, "the line ran again, and each run builds a model of its own")]


SEEDS = {
    "torch": "torch.manual_seed(7)",
    "assigned": "g = torch.manual_seed(7)",
    "from an argument": "torch.manual_seed(number)",
    "from a config": "c = Config(width=7)\n    torch.manual_seed(c.width)",
    "accelerate": "set_seed(7)",
    "accelerate, deterministic": "set_seed(7, deterministic=True)",
    "accelerate inside": "from accelerate.utils import set_seed as s\n    s(7)",
    "transformers": "transformers.set_seed(7)",
    "in an if that is known": "if number is not None:\n        set_seed(number)",
    "in an else that is known": "if number is None:\n        pass\n    else:\n        set_seed(number)",
    "everything": "seed_everything(number)",
    "everything by keyword": "seed_everything(seed=7)",
    "on the device as well": "seed_device_too(7)",
}


@pytest.mark.parametrize("case", SEEDS)
def test_seeds_are_repeated_in_the_notebook(notebook, case, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    pytest.importorskip("transformers")
    notebook.run("""
        import transformers
        from accelerate.utils import set_seed
        def seed_everything(seed=42):
            "As many notebooks have it."
            random.seed(seed)
            os.environ["PYTHONHASHSEED"] = str(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed(seed)
                torch.cuda.manual_seed_all(seed)
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
            print("seeded")
        def seed_device_too(seed):
            import torch_xla.core.xla_model as xm
            torch.manual_seed(seed)
            xm.set_rng_state(seed, xm.xla_device())
    """)
    before = states()
    plan = notebook.plan_of(
        f"""
def train(number):
    {SEEDS[case]}
    model = Net(4)
    first = bits(model), torch.randperm(8).tolist(), losses(model)
    return first, torch.are_deterministic_algorithms_enabled(), os.environ["PYTHONHASHSEED"]
""",
        "train",
        7,
    )
    assert states() == before
    assert list(plan.models) == ["model"]
    assert not notebook.names["torch"].are_deterministic_algorithms_enabled()
    same(notebook, plan, "train", 7)
    assert not BACKEND.runtime_initialized()


def test_a_seed_that_cannot_be_repeated_leaves_the_build_to_the_worker(notebook):
    plan = notebook.plan_of("""
        def number(): return 7
        def seeding():
            torch.manual_seed(number())
        def train():
            seed(3)
            seeding()
            model = Net(4)
            return bits(model), stream()
    """)
    same(notebook, plan, declined=[(0, "random numbers were drawn or seeded between line 6 and the build")])


def test_with_and_without_hoisting_in_a_real_step(notebook):
    """On the XLA device: losses, weights and all later random numbers are bit-equal."""
    plan = notebook.plan_of("""
        def train():
            import torch_xla
            from tpu_magics.backends.torch import worker
            worker.use_up_autograds_start()  # another test may have done a backward here; before the runtime is up
            from accelerate.utils import set_seed
            set_seed(42)
            model = Net(8, depth=3)
            order = torch.utils.data.DataLoader(list(range(16)), batch_size=4, shuffle=True)
            device = torch_xla.device()
            worker.start_autograd_threads()
            model = model.to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            found = []
            for batch in order:
                x = batch.float()[:, None].expand(-1, 8).to(device) / 16
                loss = ((nn.functional.dropout(model(x), 0.1) - x) ** 2).mean()
                loss.backward()
                optimizer.step(); optimizer.zero_grad()
                torch_xla.sync()
                found.append(loss.item())
            return found, [p.cpu().detach().numpy().tobytes() for p in model.parameters()], stream()
    """)
    assert list(plan.models) == ["model"]
    same(notebook, plan)
