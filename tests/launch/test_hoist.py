"""Models that are hoisted: what is found, that nothing changes by it, and that the notebook stays as it was."""

from __future__ import annotations

import os
import sys

import pytest

pytestmark = pytest.mark.process

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from .hoisting import BACKEND, Notebook, both, in_worker, reasons, run_cell, same, states  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    BACKEND.prepare()
    yield
    assert not BACKEND.runtime_initialized()


@pytest.fixture
def notebook(monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # no thread for the bars of from_pretrained
    made = Notebook()
    before = states()
    yield made
    assert states() == before, "hoisting left something behind"


# Each: what stands in the function, and the name under which its model is known.
FORMS = {
    "class": ("model = Net(4, depth=2)", "model"),
    "alias": ("M = Net\n    model = M(4)", "model"),
    "nested in a call": ("model = Net(4).to('cpu')", "model"),
    "nested in an expression": ("model = identity(Net(4))", "Net"),
    "helper": ("model = make_model(cfg)", "model"),
    "annotated helper": ("model = annotated(4)", "model"),
    "partial": ("model = partial_net()", "model"),
    "global config": ("model = Net(CFG['width'], depth=cfg.depth + 1)", "model"),
    "local config": ("c = Config(width=4, depth=2)\n    model = Net(c.width, c.depth)", "model"),
    "local number": ("w = 2\n    w2 = w * 2\n    model = Net(w2)", "model"),
    "pure builtins": ("model = Net(len([1, 2, 3, 4]), max(1, int('2')), label=f'{4:03d}')", "model"),
    "starred": ("more = {'depth': 2}\n    model = Net(*[4], **more)", "model"),
    "comprehension in an argument": ("model = Net(4, names={i: str(i) for i in range(3)})", "model"),
    "import inside": ("from torch.nn import Linear as L\n    model = L(4, 4)", "model"),
    "module inside": ("import torch.nn as layers\n    model = layers.Linear(4, 4)", "model"),
    "sequential": ("model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))", "model"),
    "ordered": (
        "from collections import OrderedDict\n"
        "    model = nn.Sequential(OrderedDict([('a', nn.Linear(4, 4)), ('b', nn.Sequential(nn.Linear(4, 4)))]))",
        "model",
    ),
    "in a harmless with": ("with warnings.catch_warnings():\n        model = Net(4)", "model"),
    "annotated target": ("model: nn.Module = Net(4)", "model"),
    "attribute": ("box = types.SimpleNamespace()\n    box.net = Net(4)\n    model = box.net", "net"),
}
HELPERS = """
import warnings
CFG = {"width": 4}
cfg = Config(depth=2)
def identity(model): return model
def annotated(width) -> "Net":
    return Net(width)
def make_model(config):
    from torch.nn import Sequential
    model = Net(config.width, config.depth)
    for p in model.layers[0].parameters():
        p.requires_grad = False
    return model
partial_net = functools.partial(Net, 4, depth=2)
"""


@pytest.mark.parametrize("form", FORMS)
def test_each_way_to_build_gives_the_same_numbers(notebook, form):
    body, name = FORMS[form]
    notebook.run(HELPERS)
    plan = notebook.plan_of(f"""
def train():
    seed(3)
    {body}
    return bits(model), [p.requires_grad for p in model.parameters()], stream(), losses(model), stream(), model
""")
    assert list(plan.models) == [name], plan.warnings()
    assert not plan.warnings()

    def call():
        *told, model = notebook.names["train"]()
        return told, model is plan.models[name]

    off, on = in_worker(call), in_worker(call, plan)
    assert on.value[0] == off.value[0] and on.declined == []
    assert on.value[1], "the worker built its own"


def test_what_is_said(notebook):
    plan = notebook.plan_of("""
        def train():
            model = Net(
                500, depth=10)
    """)
    size = 10 * (500 * 500 + 500) * 4
    assert plan.hoisted[0].bytes == size
    assert plan.hoisted[0].line == 3
    assert plan.describe(8) == ["hoisted `model = Net( ...` from line 3: 10 MB once instead of 8 times (70 MB saved)"]
    assert plan.describe(1) == ["hoisted `model = Net( ...` from line 3: 10 MB, built in the notebook"]


def test_arguments_of_the_function_its_defaults_and_its_closure(notebook):
    plan = notebook.plan_of(
        """
        def make():
            depth = 3
            def train(config, width=4, *, extra="x", **more):
                seed(1)
                model = Net(width, depth=depth, a=config.depth, b=extra, c=more["d"])
                return bits(model), model.more, len(model.layers), stream()
            return train
        train = make()
        config = Config(depth=7)
        """,
        "make",
    )
    train, config = notebook.names["train"], notebook.names["config"]
    plan = notebook.plan("train", config, d="y")
    assert list(plan.models) == ["model"]
    off, on = in_worker(lambda: train(config, d="y")), in_worker(lambda: train(config, d="y"), plan)
    assert on.value == off.value
    assert on.value[1:3] == ({"a": 7, "b": "x", "c": "y"}, 3)
    assert on.declined == []


def test_other_arguments_than_were_told_are_noticed(notebook):
    plan = notebook.plan_of("def train(width):\n    model = Net(width)\n    return bits(model)", "train", 4)
    train = notebook.names["train"]
    on = in_worker(lambda: train(5), plan)
    assert on.value == in_worker(lambda: train(5)).value
    assert on.declined == [(0, "argument 1 is not what it was in the notebook")]


def test_a_decorated_function_keeps_its_decorator(notebook):
    notebook.run("""
        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return "decorated", function(*args)
            return wrapper
        @twice
        def train(width):
            seed(1)
            model = Net(width)
            return bits(model), stream()
    """)
    plan = notebook.plan("train", 4)
    assert list(plan.models) == ["model"]
    value = same(notebook, plan, "train", 4)
    assert value[0] == "decorated"


def test_methods_partials_and_callable_objects(notebook):
    notebook.run("""
        class Base:
            def setup(self): return "base"
        class Trainer(Base):
            width = 4
            def fit(self, depth):
                model = Net(self.width, depth)
                return bits(model), super().setup()
            def __call__(self):
                model = Net(self.width)
                return bits(model)
        trainer = Trainer()
        trainer.width = 6
        fit = trainer.fit
        def plain(width, depth):
            model = Net(width, depth)
            return bits(model)
        part = functools.partial(plain, 6)
    """)
    for name, args in (("fit", (2,)), ("trainer", ()), ("part", (2,))):
        plan = notebook.plan(name, *args)
        assert list(plan.models) == ["model"], name
        same(notebook, plan, name, *args)


@pytest.mark.smoke
@pytest.mark.parametrize("guard", ["if True: pass", "if __name__ == '__main__':"])
def test_a_cell_of_statements(notebook, guard):
    """Also those of a script that was pasted, which its guard does not make conditional."""
    notebook.run("width, __name__ = 4, '__main__'")
    inner = "    " * guard.endswith(":")
    tree, plan = notebook.plan_cell(f"""
        {guard}
        {inner}seed(1); model = Net(width, depth=2)
        {inner}found = losses(model)
        {inner}rest = stream()
    """)
    assert [(one.name, one.line) for one in plan.hoisted] == [("model", 3)]
    result = "found, rest, bits(model)"
    off = run_cell(notebook, tree, plan, result, hoisted=False)
    on = run_cell(notebook, tree, plan, result, hoisted=True)
    assert on.value == off.value
    assert on.declined == []
    assert run_cell(notebook, tree, plan, "id(model)", hoisted=True).value == id(plan.models["model"])
    assert "__tpu_magics_hoisted__" not in notebook.names


def test_statements_that_give_a_name_of_the_notebook_a_new_value(notebook):
    """`model = model.to(device)`, and names that are exchanged: what they read is the notebook's value."""
    notebook.run("first, second, width, model = 4, 2, 4, nn.Identity()")
    _, plan = notebook.plan_cell("""
        before = Net(width)
        model = model.float()
        first = second
        second = first
        width = width + first
        after = Net(width)
    """)
    assert [one.name for one in plan.hoisted] == ["before"]
    assert "replaces a value that was read before" in reasons(plan)["Net(width)"]


def test_two_models_and_the_numbers_between_them(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(5)
            generator = Net(4)
            critic = Net(4, depth=2)
            np.random.seed(2)
            third = Net(4)
            return [bits(m) for m in (generator, critic, third)], stream()
    """)
    assert list(plan.models) == ["generator", "critic", "third"]
    same(notebook, plan)


def test_names_are_unique(notebook):
    plan = notebook.plan_of("""
        def train():
            pair = [Net(4), Net(4)]
            model = Net(4)
            return pair, model
    """)
    assert list(plan.models) == ["Net", "Net_2", "model"]
    assert len({id(model) for model in plan.models.values()}) == 3


def test_a_new_head_for_a_hoisted_model(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(1)
            model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
            model.head = nn.Linear(model[0].out_features, 2)
            return bits(model), stream()
    """)
    assert list(plan.models) == ["model", "head"]
    same(notebook, plan)


def test_a_line_that_runs_again_builds_again(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(0)
            model = Net(4)
            return model
    """)
    train = notebook.names["train"]

    def twice():
        first, second = train(), train()
        return first is second, first is plan.models["model"], notebook.names["bits"](second)

    on = in_worker(twice, plan)
    assert on.value[:2] == (False, True)
    assert on.value[2] == notebook.names["bits"](plan.models["model"])
    assert on.declined == [(0, "the line ran again, and each run builds a model of its own")]


def test_the_same_function_in_two_runs(notebook):
    notebook.run("def train():\n    seed(0)\n    model = Net(4)\n    return bits(model), stream()")
    found = []
    for _ in range(2):
        plan = notebook.plan("train")
        found.append(same(notebook, plan))
    assert found[0] == found[1]


def test_a_second_replica_gets_a_copy_of_the_untrained_model(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(0)
            config = Config()
            model = Configured(config)
            before = bits(model)
            with torch.no_grad():
                model.layer.weight.zero_()
            return before, id(model), model.config is config
    """)
    on = in_worker(notebook.names["train"], plan, replicas=2)
    (first, first_id, first_config), (second, second_id, second_config) = on.value
    assert first == second
    assert first_id == id(plan.models["model"]) != second_id
    assert first_config and second_config
    assert on.declined == []


def test_what_the_function_makes_on_the_device_is_not_made_to_look_at_it(notebook):
    """Something is set on it: only on a module would that be no part of a value."""
    notebook.run("""
        import torch_xla
        def train():
            device = torch_xla.device()
            drop = nn.Dropout(0.1)
            model = nn.Sequential(nn.Linear(4, 4), drop).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            drop.p = 0.2
            optimizer.param_groups[0]["lr"] = 0.2
            device.anything = 1
            last = nn.Linear(4, 2)
            return last
    """)
    plan = notebook.plan("train")
    assert plan.describe(1)
    assert not BACKEND.runtime_initialized()


def test_the_function_and_the_notebook_stay_as_they_are(notebook):
    notebook.run("""
        cfg = Config(width=4)
        def train():
            os.environ["HOIST_TEST"] = "1"
            seed(9)
            model = Builder(cfg)
            return model.config is cfg, cfg.built
    """)
    train, names = notebook.names["train"], dict(notebook.names)
    code, variables = train.__code__, vars(notebook.names["cfg"]).copy()
    plan = notebook.plan("train")
    on = in_worker(train, plan)
    assert on.value == (True, True)
    assert on.declined == []
    assert train.__code__ is code
    assert notebook.names == names
    assert vars(notebook.names["cfg"]) == variables == {"width": 4, "depth": 1}
    assert "HOIST_TEST" not in os.environ
    with pytest.raises(RuntimeError, match="in a forked worker"):
        plan.install(lambda number, reason: None)


def test_what_a_config_is_told_later_the_model_knows(notebook):
    notebook.run("""
        shared = Config(width=4)
        def train():
            own = Config(width=4)
            listed = [1]
            first, second, third = Configured(shared), Configured(own), Net(4, listed=listed)
            shared.depth = 10
            own.depth = 20
            listed.append(2)
            return first.config.depth, second.config.depth, third.more["listed"], second.config is own
    """)
    plan = notebook.plan("train")
    assert len(plan.models) == 3
    assert same(notebook, plan) == (10, 20, [1, 2], True)


def test_what_a_build_prints_appears_in_the_worker(notebook, capsys):
    plan = notebook.plan_of("""
        class Chatty(Net):
            def __init__(self):
                super().__init__(4)
                print("built", self.width)
        def train():
            print("before")
            model = Chatty()
            print("after")
    """)
    assert capsys.readouterr().out == ""
    off, on = both(notebook, plan)
    assert on.printed == off.printed == "before\nbuilt 4\nafter\n"


def test_an_exception_is_raised_where_the_call_stands(notebook):
    plan = notebook.plan_of("""
        class Broken(nn.Module):
            def __init__(self):
                super().__init__()
                raise ValueError("no weights here")
        def train():
            first = Net(4)
            try:
                pass
            finally:
                pass
            model = Broken()
            last = Net(4)
    """)
    assert list(plan.models) == ["first"]
    assert [one.reason for one in plan.declined] == [
        "building it in the notebook raised ValueError: no weights here",
        "the model in line 12 before it could not be built",
    ]
    with pytest.raises(AssertionError, match="no weights here"):
        in_worker(notebook.names["train"], plan)


def test_losses_and_other_modules_without_weights_are_no_models(notebook):
    plan = notebook.plan_of("""
        class Scale(nn.Module):
            def forward(self, x): return 2 * x
        def train():
            criterion = nn.CrossEntropyLoss()
            activation = nn.ReLU()
            scale = Scale()
            for _ in range(2):
                y = nn.Softmax(dim=1)
            return criterion
    """)
    assert plan.hoisted == ()
    assert plan.declined == ()
    assert isinstance(in_worker(notebook.names["train"], plan).value, torch.nn.CrossEntropyLoss)


def test_transformers_models(notebook, tmp_path):
    pytest.importorskip("transformers")
    notebook.run("""
        from transformers import AutoModelForSequenceClassification as Auto, BertConfig, BertModel
        small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        config = BertConfig(num_labels=3, **small)
    """)
    notebook.names["path"] = str(tmp_path / "saved")
    plan = notebook.plan_of(
        """
        def train(n):
            from transformers import set_seed
            set_seed(42)
            made = Auto.from_config(config)
            local = BertConfig(num_labels=n, **small)
            other = BertModel(local)
            other.save_pretrained(path)
            local.use_cache = False
            return [bits(m) for m in (made, other)], made.config is config, other.config.use_cache, stream()
    """,
        "train",
        2,
    )
    assert list(plan.models) == ["made", "other"], plan.warnings()
    value = same(notebook, plan, "train", 2)
    assert value[1:3] == (True, False)
    assert notebook.names["config"]._attn_implementation_internal is None


def test_pretrained_weights_do_not_depend_on_random_numbers(notebook, tmp_path):
    pytest.importorskip("transformers")
    notebook.run("""
        from transformers import AutoModel, BertConfig, BertModel
        small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50)
    """)
    notebook.names["path"] = str(tmp_path)
    in_worker(lambda: notebook.run("BertModel(BertConfig(**small)).save_pretrained(path)"))
    plan = notebook.plan_of(
        """
        def train(change):
            torch.randn(3)
            random.seed(1)
            if change:
                BertModel(BertConfig(**small)).save_pretrained(path)
            model = AutoModel.from_pretrained(path)
            return bits(model), stream()
    """,
        "train",
        False,
    )
    assert list(plan.models) == ["model"], plan.warnings()
    value = same(notebook, plan, "train", False)
    changed = in_worker(lambda: notebook.names["train"](True), plan)
    assert changed.declined == [(0, "files that it reads have changed")]
    assert changed.value[0] != value[0]


def test_a_build_that_starts_the_runtime_is_an_error(notebook):
    """In a process of its own, since it does start the runtime."""
    from tpu_magics.errors import TpuMagicsError

    notebook.run("""
        import importlib
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                importlib.import_module("".join(["torch", "_xla"])).device()
                self.layer = nn.Linear(2, 2)
        def train():
            model = Hidden()
    """)

    def planning():
        try:
            notebook.plan("train")
        except TpuMagicsError as error:
            return str(error)

    text = in_worker(planning).value
    assert text == (
        "Building the model of `model = Hidden()` (line 9) started the device's runtime in the notebook.\n"
        "Why: The model is built once in the notebook for all workers. Its code used the device, and a process with a "
        "running runtime cannot be forked.\n"
        "What to do: Restart the kernel, and train with `--hoist off` or do not use the device in the model's code."
    )


def test_nothing_is_imported_or_built_where_there_is_no_model(notebook, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    plan = notebook.plan_of(
        """
        def train(model):
            import colorsys
            seed(0)
            return model
    """,
        "train",
        None,
    )
    assert plan.hoisted == plan.declined == ()
    assert plan.code is None
    assert "colorsys" not in sys.modules


def test_the_optimizer_of_a_hoisted_model_trains_it(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(0)
            model = Net(4)
            found = losses(model, steps=5)
            return found, bits(model)
    """)
    untrained = notebook.names["bits"](plan.models["model"])
    assert same(notebook, plan)[1] != untrained == notebook.names["bits"](plan.models["model"])
