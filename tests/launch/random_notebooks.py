"""Notebooks put together at random from common parts: each is run with `%%tpu_train`, and as plain cells on the CPU."""

# ruff: noqa: E501 - the parts are read as the cells that they make

from __future__ import annotations

import ast
import contextlib
import copy
import json
import random
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


@dataclass(frozen=True)
class Part:
    """What people write. `make`: before the training; `use`: in its loop, with `i`, `value` and `device`; `see`: an
    expression of plain data that tells the state. `$` is a number that makes names unique; `once`: a later use in the
    notebook is left out."""

    make: str
    use: str
    see: str
    once: bool = False


HEAD = """
import abc, array, bisect, collections, contextlib, contextvars, copy, dataclasses, datetime, decimal, enum, fractions
import functools, heapq, io, itertools, json, logging, math, operator, os, pathlib, queue, random, statistics, string
import threading, time, types, typing, uuid, warnings, weakref
import numpy as np, pandas as pd, torch, torch_xla
from torch import nn
random.seed(0), np.random.seed(0), torch.manual_seed(0)
rows = torch.randn(8, 4)
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
"""
LOOP = """
net.to(device)
for i in range(2):
    optimizer.zero_grad()
    loss = net(rows.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    value = loss.item()
"""
DEVICE = "device = torch_xla.device()"
SEE = "[p.tolist() for p in net.parameters()], [s['exp_avg'].tolist() for s in optimizer.state.values()]"

PARTS: dict[str, Part] = {
    "frame": Part(
        "frame$ = pd.DataFrame(columns=['epoch', 'loss'])",
        "frame$.loc[len(frame$)] = [i, value]",
        "frame$.to_dict('list')",
    ),
    "series": Part("series$ = pd.Series(dtype=float)", "series$[f'e{i}'] = value", "series$.to_dict()"),
    "event": Part("event$ = threading.Event()", "event$.set()", "event$.is_set()"),
    "cache": Part(
        "@functools.lru_cache(maxsize=None)\ndef cached$(n):\n    return n * 2",
        "cached$(i)",
        "cached$.cache_info().misses",
    ),
    "handler": Part(
        "class Keep$(logging.Handler):\n    def __init__(self):\n        super().__init__(); self.lines = []\n"
        "    def emit(self, record):\n        self.lines.append(record.getMessage())\n"
        "keep$ = Keep$(); log$ = logging.getLogger('of_notebook$'); log$.handlers.clear()\n"
        "log$.addHandler(keep$); log$.setLevel(logging.INFO); log$.propagate = False",
        "log$.info('epoch %d', i)",
        "keep$.lines",
    ),
    "added_handler": Part(
        "log$ = logging.getLogger('of_notebook$'); log$.handlers.clear(); log$.propagate = False; text$ = io.StringIO()",
        "if not log$.handlers: log$.addHandler(logging.StreamHandler(text$)); log$.setLevel(10)\nlog$.debug(f'e{i}')",
        "text$.getvalue(), len(log$.handlers), log$.level",
    ),
    "lambda_lr": Part(
        "p$ = nn.Parameter(torch.ones(2)); o$ = torch.optim.SGD([p$], lr=1.0)\n"
        "s$ = torch.optim.lr_scheduler.LambdaLR(o$, lambda step: 0.5 ** step)",
        "o$.step(); s$.step()",
        "s$.get_last_lr(), s$.last_epoch, o$.param_groups[0]['lr']",
    ),
    "one_cycle": Part(
        "o$ = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0, momentum=0.9)\n"
        "s$ = torch.optim.lr_scheduler.OneCycleLR(o$, 1.0, total_steps=40)",
        "o$.step(); s$.step()",
        "s$.get_last_lr(), s$.last_epoch, o$.param_groups[0]['momentum']",
    ),
    "sequential_lr": Part(
        "o$ = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0); L$ = torch.optim.lr_scheduler\n"
        "s$ = L$.SequentialLR(o$, [L$.LinearLR(o$), L$.CosineAnnealingLR(o$, 5)], milestones=[1])",
        "o$.step(); s$.step()",
        "s$.get_last_lr(), [one.last_epoch for one in s$._schedulers]",
    ),
    "plateau": Part(
        "o$ = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)\n"
        "s$ = torch.optim.lr_scheduler.ReduceLROnPlateau(o$, patience=0)",
        "s$.step(1.0 + i)",
        "o$.param_groups[0]['lr'], s$.best, s$.num_bad_epochs",
    ),
    "device_class": Part(
        "class Fitter$:\n    def __init__(self): self.device = None; self.steps = 0\n"
        "    def fit(self, device):\n        self.device = device; self.steps += 1\n"
        "        self.last = torch.ones(2, device=device) * self.steps\nfit$ = Fitter$()",
        "fit$.fit(device)",
        "fit$.device.type, fit$.steps, fit$.last.tolist(), fit$.last.device.type",
    ),
    "device_keys": Part(
        "by_device$ = {}",
        "by_device$[device] = by_device$.get(device, 0) + 1",
        "[(key.type, item) for key, item in by_device$.items()], by_device$.get(torch.device('cpu'))",
    ),
    "device_text_keys": Part(
        "moved$ = {}",
        "moved$.setdefault(str(i), []).append(torch.full((2,), i, device=device))",
        "{key: [(t.tolist(), t.device.type) for t in item] for key, item in moved$.items()}",
    ),
    "metric": Part(
        "class Metric$(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('total', torch.zeros(())); self._device = torch.device('cpu')\n"
        "        self._cache = {}; self._update_count = 0\n"
        "    def to(self, device):\n        self._device = device; return super().to(device)\n"
        "    def update(self, x):\n        self.total += x.sum(); self._update_count += 1; self._cache['x'] = x.detach()\n"
        "metric$ = Metric$()",
        "metric$.to(device).update(torch.ones(3, device=device))",
        "metric$.total.item(), metric$._device.type, metric$._update_count, metric$._cache['x'].device.type",
    ),
    "list_metric": Part(
        "class ListMetric$:\n    def __init__(self): self.preds = []; self._computed = None\n"
        "    def update(self, p): self.preds.append(p.detach()); self._computed = None\n"
        "    def compute(self):\n        if self._computed is None: self._computed = torch.cat(self.preds).mean()\n"
        "        return self._computed\nmetric$ = ListMetric$()",
        "metric$.preds = [p.to(device) for p in metric$.preds]\n"
        "metric$.update(torch.ones(2, device=device) * i); metric$.compute()",
        "metric$._computed.item(), [p.tolist() for p in metric$.preds]",
    ),
    "dataclass": Part(
        "@dataclasses.dataclass\nclass State$:\n    step: int = 0\n    losses: list = dataclasses.field(default_factory=list)\n"
        "    best: float | None = None\nstate$ = State$()",
        "state$.step += 1; state$.losses.append(value); state$.best = min(state$.losses)",
        "dataclasses.asdict(state$)",
    ),
    "frozen_dataclass": Part(
        "@dataclasses.dataclass(frozen=True)\nclass Point$:\n    x: int\n    tags: tuple = ()\npoint$ = [Point$(0)]",
        "point$[0] = dataclasses.replace(point$[0], x=i, tags=(*point$[0].tags, i))",
        "point$[0].x, point$[0].tags, type(point$[0]) is Point$",
    ),
    "slots_dataclass": Part(
        "@dataclasses.dataclass(slots=True)\nclass Slots$:\n    x: int = 0\n    more: dict = dataclasses.field(default_factory=dict)\n"
        "slots$ = Slots$()",
        "slots$.x += 1; slots$.more[i] = slots$.x",
        "slots$.x, slots$.more",
    ),
    "collections": Part(
        "many$ = collections.defaultdict(list); count$ = collections.Counter(); last$ = collections.deque(maxlen=2)\n"
        "order$ = collections.OrderedDict(a=1, b=2); chain$ = collections.ChainMap({}, {'x': 1})",
        "many$[i].append(value); count$.update('ab'); last$.append(value); order$.move_to_end('a'); order$[i] = i\n"
        "chain$['x'] = i; chain$['y'] = i",
        "dict(many$), dict(count$), list(last$), last$.maxlen, list(order$.items()), dict(chain$), many$.default_factory",
    ),
    "nested_defaultdict": Part(
        "deep$ = collections.defaultdict(lambda: collections.defaultdict(list))",
        "deep$['train'][i].append(value); deep$['valid']",
        "{key: dict(item) for key, item in deep$.items()}, type(deep$['new']).__name__",
    ),
    "arrays": Part(
        "array$ = np.zeros((3, 4)); row$ = array$[1]; ints$ = array.array('i', [0, 0]); objects$ = np.array([[], {}], dtype=object)",
        "array$[i % 3] += i + 1; row$[0] = 7; ints$[i % 2] += 1; objects$[0].append(i); objects$[1][i] = value",
        "array$.tolist(), row$.tolist(), ints$.tolist(), objects$.tolist(), np.shares_memory(row$, array$)",
    ),
    "structured_array": Part(
        "table$ = np.zeros(4, dtype=[('step', 'i4'), ('loss', 'f8')]); rec$ = table$.view(np.recarray)",
        "table$[i] = (i, value); rec$.step[3] = i",
        "table$.tolist(), rec$.step.tolist()",
    ),
    "history": Part(
        "history$ = {'loss': [], 'lr': [], 'nested': [{'a': []}]}",
        "history$['loss'].append(value); history$['lr'].append(0.1); history$['nested'][0]['a'].append(i)\n"
        "history$['nested'].append({'a': [i]}); history$.setdefault('new', []).append(i)",
        "history$",
    ),
    "generator": Part(
        "def numbers$():\n    n = 0\n    while True:\n        yield n\n        n += 1\ngen$ = numbers$(); next(gen$)",
        "next(gen$)",
        "next(gen$)",
        once=True,
    ),
    "iterators": Part(
        "cycle$ = itertools.cycle('abc'); ids$ = itertools.count(); it$ = iter([1, 2, 3, 4, 5, 6, 7, 8, 9])\n"
        "pairs$ = enumerate('abcdefghi')",
        "next(cycle$); next(ids$); next(it$); next(pairs$)",
        "next(cycle$), next(ids$), next(it$), next(pairs$)",
        once=True,
    ),
    "randoms": Part(
        "r$ = random.Random(3); n$ = np.random.default_rng(3); s$ = np.random.RandomState(3); g$ = torch.Generator().manual_seed(3)",
        "r$.random(); n$.random(); s$.rand(); torch.randn(2, generator=g$); random.random(); np.random.rand()",
        "r$.random(), n$.random(), s$.rand(), torch.randn(2, generator=g$).tolist()",
    ),
    "global_random": Part(
        "drawn$ = []",
        "drawn$.append((random.random(), np.random.rand(), torch.rand(1).item(), random.sample(range(9), 3)))",
        "drawn$, random.random(), np.random.rand(), torch.rand(1).item()",
    ),
    "closure": Part(
        "def counter$():\n    n, seen = 0, []\n    def step(value):\n        nonlocal n\n        n += 1; seen.append(value)\n        return n\n"
        "    def report(): return n, seen\n    return step, report\nstep$, report$ = counter$()",
        "step$(value)",
        "report$()",
    ),
    "globals": Part(
        "best$ = 1e9; def_$ = None\ndef track$(v):\n    global best$, made$\n    best$ = min(best$, v); made$ = [v]",
        "track$(value)",
        "best$, made$",
    ),
    "function_attributes": Part(
        "def counted$(x):\n    counted$.calls += 1\n    return x\ncounted$.calls = 0\n"
        "def memo$(x, known={}):\n    known[x] = known.get(x, 0) + 1\n    return known",
        "counted$(i); memo$(i)",
        "counted$.calls, memo$(99)",
    ),
    "class_attributes": Part(
        "class Registry$:\n    instances = []\n    count = 0\n    def __init__(self):\n        Registry$.count += 1; self.instances.append(self)\n"
        "    @classmethod\n    def names(cls): return [type(one).__name__ for one in cls.instances]",
        "Registry$()",
        "Registry$.count, Registry$.names(), all(isinstance(one, Registry$) for one in Registry$.instances)",
    ),
    "inherited_class_attributes": Part(
        "class Base$:\n    total = 0\nclass Child$(Base$):\n    pass\nchild$ = Child$()",
        "Base$.total += 1; Child$.own = i; type(child$).late = lambda self: self.total",
        "Base$.total, Child$.total, Child$.own, child$.late()",
    ),
    "callbacks": Part(
        "class Stop$:\n    def __init__(self, patience=1): self.patience, self.best, self.bad, self.model = patience, None, 0, None\n"
        "    def __call__(self, loss, model):\n        self.model = model\n"
        "        if self.best is None or loss < self.best: self.best, self.bad, self.weights = loss, 0, copy.deepcopy(model.state_dict())\n"
        "        else: self.bad += 1\nstop$ = Stop$()",
        "stop$(value, net)",
        "stop$.best, stop$.bad, stop$.model is net, {k: (v.tolist(), v.device.type) for k, v in stop$.weights.items()}",
    ),
    "best_weights": Part(
        "best$ = {}",
        "best$.update({k: v.detach().cpu().clone() for k, v in net.state_dict().items()})",
        "{k: v.tolist() for k, v in best$.items()}",
    ),
    "swa": Part(
        "swa$ = torch.optim.swa_utils.AveragedModel(net)",
        "swa$.to(device).update_parameters(net)",
        "swa$.n_averaged.item(), [(p.tolist(), p.device.type) for p in swa$.module.parameters()]",
    ),
    "ema_multi": Part(
        "ema$ = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))",
        "ema$.to(device).update_parameters(net)",
        "ema$.n_averaged.item(), [(p.tolist(), p.device.type) for p in ema$.module.parameters()]",
    ),
    "ema_copy": Part(
        "ema$ = copy.deepcopy(net).requires_grad_(False)",
        "ema$.to(device)\nwith torch.no_grad():\n    for e, p in zip(ema$.parameters(), net.parameters()): e.lerp_(p, 0.1)",
        "[(p.tolist(), p.device.type) for p in ema$.parameters()]",
    ),
    "ema_shadow": Part(
        "shadow$ = {n: p.detach().clone() for n, p in net.named_parameters()}",
        "for n, p in net.named_parameters(): shadow$[n] = 0.9 * shadow$[n].to(device) + 0.1 * p.detach()",
        "{n: (t.tolist(), t.device.type) for n, t in shadow$.items()}",
    ),
    "hooks": Part(
        "seen$ = []\nhandle$ = net[0].register_forward_hook(lambda m, a, o: seen$.append(o.shape[0]))",
        "seen$.append('epoch')",
        "seen$",
    ),
    "removed_hook": Part(
        "calls$ = []; handle$ = net[0].register_forward_hook(lambda m, a, o: calls$.append(1))",
        "handle$.remove()",
        "(lambda before: (net(rows), len(calls$) == before)[1])(len(calls$)), [h for h in (handle$.id in net[0]._forward_hooks,)]",
    ),
    "added_hook": Part(
        "acts$ = {}\ndef keep$(m, a, o): acts$['n'] = acts$.get('n', 0) + 1",
        "if i == 0: handle$ = net[0].register_forward_hook(keep$)",
        "(net(rows), acts$['n'])[1]",
        once=True,
    ),
    "parameter_hook": Part(
        "norms$ = []; handle$ = net[0].weight.register_hook(lambda g: norms$.append(tuple(g.shape)))",
        "if i == 1: handle$.remove()",
        "norms$, len(net[0].weight._backward_hooks or {}) ",
        once=True,
    ),
    "post_grad_hook": Part(
        "n$ = [0]\ndef count$(p): n$[0] += 1\nhandle$ = net[2].weight.register_post_accumulate_grad_hook(count$)",
        "n$[0] += 10",
        "n$",
    ),
    "optimizer_hook": Part(
        "steps$ = []; handle$ = optimizer.register_step_post_hook(lambda o, a, k: steps$.append(1))",
        "if i == 0: handle$.remove()",
        "steps$, len(optimizer._optimizer_step_post_hooks)",
        once=True,
    ),
    "state_dict_hook": Part(
        "m$ = nn.Linear(2, 2); handle$ = m$.register_state_dict_post_hook(lambda m, d, p, meta: d.update(extra=1))",
        "handle$.remove()",
        "sorted(m$.state_dict())",
    ),
    "tag": Part("", "net[0].bias.tag = i; net[0].note = f'e{i}'", "net[0].bias.tag, net[0].note"),
    "graph": Part(
        "class Keeps$:\n    graph = None\nkeeps$ = Keeps$()",
        "keeps$.graph = net(rows.to(device)).mean(); net[0].weight.number = i; keeps$.norm = net[0].weight.detach().norm()",
        "keeps$.graph.item(), net[0].weight.number, keeps$.norm.item()",
    ),
    "losses_with_graph": Part(
        "losses$ = []", "losses$.append(net(rows.to(device)).mean())", "[loss.item() for loss in losses$]"
    ),
    "sampler": Part(
        "data$ = torch.utils.data.TensorDataset(torch.arange(6.0)); w$ = torch.utils.data.WeightedRandomSampler([1.0] * 6, 3, generator=torch.Generator().manual_seed(1))\n"
        "loader$ = torch.utils.data.DataLoader(data$, batch_size=2, sampler=w$); got$ = []",
        "for (b,) in loader$: got$.append(b.tolist())",
        "got$, [b.tolist() for (b,) in loader$]",
    ),
    "own_sampler": Part(
        "class Sampler$(torch.utils.data.Sampler):\n    def __init__(self): self.epoch = 0; self.orders = []\n    def set_epoch(self, e): self.epoch = e\n"
        "    def __iter__(self):\n        order = torch.randperm(4, generator=torch.Generator().manual_seed(self.epoch)).tolist(); self.orders.append(order); return iter(order)\n"
        "    def __len__(self): return 4\nsampler$ = Sampler$(); loader$ = torch.utils.data.DataLoader(range(4), sampler=sampler$)",
        "sampler$.set_epoch(i)\nfor b in loader$: pass",
        "sampler$.epoch, sampler$.orders",
    ),
    "dataset": Part(
        "class Data$(torch.utils.data.Dataset):\n    def __init__(self): self.cache = {}; self.hits = 0\n    def __len__(self): return 4\n"
        "    def __getitem__(self, k):\n        self.hits += k in self.cache; self.cache.setdefault(k, torch.tensor([float(k)])); return self.cache[k]\n"
        "data$ = Data$(); loader$ = torch.utils.data.DataLoader(data$, batch_size=2, shuffle=True)",
        "for b in loader$: b.to(device)",
        "data$.hits, {k: v.tolist() for k, v in sorted(data$.cache.items())}",
    ),
    "loader_iterator": Part(
        "loader$ = torch.utils.data.DataLoader(range(40), batch_size=2); it$ = iter(loader$)",
        "next(it$)",
        "next(it$).tolist()",
        once=True,
    ),
    "autograd_function": Part(
        "class Count$(torch.autograd.Function):\n    calls = {'forward': 0, 'backward': 0}; last = None\n    @staticmethod\n"
        "    def forward(ctx, x):\n        Count$.calls['forward'] += 1; Count$.last = tuple(x.shape); return x * 2\n    @staticmethod\n"
        "    def backward(ctx, g):\n        Count$.calls['backward'] += 1; return g * 2",
        "w = torch.ones(2, device=device, requires_grad=True); Count$.apply(w).sum().backward()",
        "Count$.calls, Count$.last",
    ),
    "weakref": Part(
        "class Node$: pass\nnode$ = Node$(); ref$ = weakref.ref(node$); weak$ = weakref.WeakValueDictionary(a=node$); set$ = weakref.WeakSet()",
        "node$.value = i; weak$[f'k{i}'] = node$; set$.add(node$)",
        "ref$() is node$, sorted(weak$), node$.value, len(set$)",
    ),
    "weakref_in_object": Part(
        "class Tree$:\n    def __init__(self, parent=None):\n        self.parent = parent and weakref.ref(parent); self.children = []\n"
        "tree$ = Tree$()",
        "tree$.children.append(Tree$(tree$))",
        "[child.parent() is tree$ for child in tree$.children]",
    ),
    "partial": Part(
        "log$ = []; note$ = functools.partial(log$.append); both$ = functools.partial(lambda store, key, v: store.update({key: v}), {}, 'k')",
        "note$(i); both$(v=value)",
        "log$, both$.args[0]",
    ),
    "property": Part(
        "class Config$:\n    __slots__ = ('_lr', 'seen', '__dict__')\n    def __init__(self): self._lr = 1.0; self.seen = []\n    @property\n"
        "    def lr(self): return self._lr\n    @lr.setter\n    def lr(self, v): self._lr = v; self.seen.append(v)\n"
        "    @functools.cached_property\n    def heavy(self): return sum(self.seen)\nconfig$ = Config$()",
        "config$.lr = config$.lr / 2; config$.extra = i; config$.heavy",
        "config$.lr, config$.seen, config$.extra, config$.heavy",
    ),
    "plain_slots": Part(
        "class Tiny$:\n    __slots__ = ('a', 'b')\nclass More$(Tiny$):\n    __slots__ = ('c',)\ntiny$ = More$(); tiny$.a = 0",
        "tiny$.a += 1; tiny$.b = [i]; tiny$.c = tiny$",
        "tiny$.a, tiny$.b, tiny$.c is tiny$",
    ),
    "descriptor": Part(
        "class Checked$:\n    def __set_name__(self, owner, name): self.name = '_' + name; self.sets = 0\n"
        "    def __get__(self, o, k=None): return self if o is None else getattr(o, self.name, 0)\n"
        "    def __set__(self, o, v): self.sets += 1; setattr(o, self.name, v)\nclass Has$:\n    x = Checked$()\nhas$ = Has$()",
        "has$.x = has$.x + 1",
        "has$.x, Has$.x.sets",
    ),
    "enum": Part(
        "class Phase$(enum.Enum):\n    WARM = 'warm'\n    HOT = 'hot'\nphase$ = {'now': Phase$.WARM, 'seen': []}",
        "phase$['now'] = Phase$.HOT; phase$['seen'].append(phase$['now']); Phase$.HOT.note = i",
        "phase$['now'] is Phase$.HOT, [one is Phase$.HOT for one in phase$['seen']], Phase$.HOT.note",
    ),
    "flag": Part(
        "class Flag$(enum.Flag):\n    A = 1\n    B = 2\nclass F$: value = Flag$(0)\nflag$ = F$()",
        "flag$.value |= Flag$.A if i else Flag$.B",
        "flag$.value == Flag$.A | Flag$.B, flag$.value is Flag$.A | Flag$.B",
    ),
    "paths": Part(
        "class Paths$: pass\npaths$ = Paths$(); paths$.best = None",
        "paths$.best = pathlib.Path('runs') / f'e{i}'; paths$.when = datetime.datetime(2020, 1, 1 + i); paths$.money = decimal.Decimal(i)\n"
        "paths$.part = fractions.Fraction(i, 3); paths$.id = uuid.UUID(int=i); paths$.span = datetime.timedelta(i)",
        "str(paths$.best), str(paths$.when), str(paths$.money), str(paths$.part), str(paths$.id), str(paths$.span)",
    ),
    "sets": Part(
        "seen$ = set(); frozen$ = [frozenset()]; tensors$ = set()",
        "seen$.add(i); seen$.add((i, 'a')); frozen$[0] |= {i}; tensors$.add(net[0])",
        "sorted(map(str, seen$)), sorted(frozen$[0]), [one is net[0] for one in tensors$]",
    ),
    "named_tuple": Part(
        "class Record$(typing.NamedTuple):\n    step: int\n    items: list\nP$ = collections.namedtuple('P$', 'x y'); records$ = [Record$(0, [])]",
        "records$[0].items.append(i); records$.append(Record$(i, [value])); records$.append(P$(i, 2))",
        "[tuple(one) for one in records$], [type(one).__name__ for one in records$], type(records$[-1]) is P$",
    ),
    "typed_dict": Part(
        "class Row$(typing.TypedDict):\n    a: int\nlog$: list[Row$] = []; space$ = types.SimpleNamespace(a=1, b=types.SimpleNamespace(c=[]))",
        "log$.append(Row$(a=i)); space$.a += 1; space$.b.c.append(i); space$.new = i",
        "log$, space$.a, space$.b.c, space$.new",
    ),
    "dict_subclass": Part(
        "class AttrDict$(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\nclass Log$(list):\n    total = 0\n"
        "    def append(self, x): self.total += 1; super().append(x)\nattr$ = AttrDict$(a=1); list$ = Log$()",
        "attr$.a += 1; attr$[f'k{i}'] = value; list$.append(i)",
        "dict(attr$), list(list$), list$.total",
    ),
    "user_dict": Part(
        "user$ = collections.UserDict(a=[]); ulist$ = collections.UserList(); heap$ = []; queue$ = queue.Queue(); prio$ = queue.PriorityQueue()",
        "user$['a'].append(i); user$[i] = 1; ulist$.append(i); heapq.heappush(heap$, -i); queue$.put(i); prio$.put((-i, 'x'))",
        "dict(user$), list(ulist$), heap$, list(queue$.queue), list(prio$.queue), queue$.unfinished_tasks",
    ),
    "buffers": Part(
        "buffer$ = io.BytesIO(); text$ = io.StringIO(); raw$ = bytearray(b''); view$ = memoryview(bytearray(4))",
        "buffer$.write(b'x' * (i + 1)); print('epoch', i, file=text$); raw$.extend(b'ab'); view$[i] = 9",
        "buffer$.getvalue(), text$.getvalue(), bytes(raw$), bytes(view$), buffer$.tell()",
    ),
    "contextvar": Part(
        "var$ = contextvars.ContextVar('var$', default=0); tls$ = threading.local(); tls$.n = 0",
        "var$.set(var$.get() + 1); tls$.n += 1",
        "var$.get(), tls$.n",
    ),
    "lock": Part(
        "class Safe$:\n    def __init__(self): self.lock = threading.Lock(); self.n = 0; self.cond = threading.Condition(); self.sem = threading.Semaphore(2)\n"
        "    def add(self):\n        with self.lock, self.cond: self.n += 1\nsafe$ = Safe$()",
        "safe$.add()",
        "safe$.n, safe$.lock.locked()",
    ),
    "semaphore": Part(
        "sem$ = threading.Semaphore(50); barrier$ = threading.Barrier(1)",
        "sem$.acquire(); barrier$.wait()",
        "sem$._value",
    ),
    "pool_result": Part(
        "out$ = []",
        "import concurrent.futures\nwith concurrent.futures.ThreadPoolExecutor(1) as pool: out$.extend(pool.map(lambda x: x + i, [1, 2]))",
        "out$",
    ),
    "thread": Part(
        "got$ = []",
        "t = threading.Thread(target=got$.append, args=(i,)); t.start(); t.join()",
        "got$",
    ),
    "environment": Part(
        "os.environ['TUNED_$'] = 'no'",
        "os.environ['TUNED_$'] = f'e{i}'; os.environ.setdefault('MADE_$', 'yes')",
        "os.environ['TUNED_$'], os.environ['MADE_$']",
    ),
    "torch_settings": Part(
        "np.set_printoptions(precision=8)",
        "np.set_printoptions(precision=5)",
        "np.get_printoptions()['precision']",
    ),
    "pandas_option": Part(
        "pd.set_option('display.precision', 6)",
        "pd.set_option('display.precision', 3)",
        "pd.get_option('display.precision')",
    ),
    "frozen": Part(
        "head$ = nn.Linear(2, 2)",
        "head$.to(device).requires_grad_(i == 0); head$.eval(); head$.name = f'h{i}'",
        "[p.requires_grad for p in head$.parameters()], head$.training, head$.name, head$.weight.device.type",
    ),
    "swapped_layer": Part(
        "m$ = nn.Sequential(nn.Linear(2, 2), nn.ReLU()); alias$ = m$[0]",
        "m$[1] = nn.Tanh(); m$.to(device); nn.init.constant_(m$[0].weight, i)",
        "type(m$[1]).__name__, m$[0] is alias$, m$[0].weight.tolist()",
    ),
    "batchnorm": Part(
        "bn$ = nn.BatchNorm1d(4)",
        "bn$.to(device)(rows.to(device))",
        "bn$.running_mean.tolist(), bn$.num_batches_tracked.item()",
    ),
    "parametrized": Part(
        "pm$ = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)); nn.init.constant_(pm$.parametrizations.weight.original0, 1.0)",
        "pm$.to(device)\nwith torch.no_grad(): pm$.parametrizations.weight.original0.add_(1)",
        "pm$.parametrizations.weight.original0.tolist(), pm$.weight.device.type",
    ),
    "made_optimizer": Part(
        "class Run$: optimizer = None\nrun$ = Run$(); head$ = nn.Linear(4, 1)",
        "head$.to(device)\nif run$.optimizer is None: run$.optimizer = torch.optim.AdamW(head$.parameters(), lr=0.1)\n"
        "head$(rows.to(device)).mean().backward(); run$.optimizer.step(); run$.optimizer.zero_grad()",
        "[p is q for p, q in zip(run$.optimizer.param_groups[0]['params'], head$.parameters())], head$.weight.tolist(), [s['step'].item() for s in run$.optimizer.state.values()]",
    ),
    "added_group": Part(
        "a$ = nn.Linear(2, 2); b$ = nn.Linear(2, 2); o$ = torch.optim.SGD(a$.parameters(), lr=0.1)",
        "a$.to(device), b$.to(device)\nif len(o$.param_groups) == 1: o$.add_param_group({'params': list(b$.parameters()), 'lr': 0.01})\no$.param_groups[0]['lr'] *= 0.5",
        "len(o$.param_groups), [g['lr'] for g in o$.param_groups], o$.param_groups[1]['params'][0] is b$.weight",
    ),
    "scaler": Part(
        "scaler$ = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=1); w$ = nn.Parameter(torch.ones(1)); o$ = torch.optim.SGD([w$], lr=0.1)",
        "o$.zero_grad(); scaler$.scale((w$ * 2).sum()).backward(); scaler$.step(o$); scaler$.update()",
        "scaler$.get_scale(), w$.tolist()",
    ),
    "distribution": Part(
        "dist$ = torch.distributions.Normal(torch.zeros(1), torch.ones(1))",
        "dist$.loc = torch.full((1,), float(i), device=device)",
        "dist$.loc.tolist(), dist$.loc.device.type",
    ),
    "tensors": Part(
        "t$ = torch.zeros(3); view$ = t$[:2]; both$ = [t$, view$]; half$ = torch.zeros(2, dtype=torch.bfloat16); c$ = torch.zeros(2, dtype=torch.complex64)",
        "t$[0] += 1; half$ += 1; c$ += 1j; both$.append(t$.to(device))",
        "t$.tolist(), view$.tolist(), both$[0] is t$, half$.tolist(), c$.tolist(), both$[-1].tolist(), view$.data_ptr() == t$.data_ptr()",
    ),
    "sparse": Part(
        "sp$ = {'m': torch.eye(2).to_sparse()}", "sp$['m'] = (sp$['m'] * 2).coalesce()", "sp$['m'].to_dense().tolist()"
    ),
    "shared_list": Part(
        "common$ = []; a$ = {'x': common$}; b$ = (common$, a$); class_$ = types.SimpleNamespace(c=common$)",
        "a$['x'].append(i); b$[1]['y'] = b$",
        "common$, a$['x'] is common$, b$[0] is common$, class_$.c is common$, a$['y'] is b$",
    ),
    "cyclic": Part(
        "class Link$: pass\nl$ = Link$(); l$.me = l$; l$.all = [l$]",
        "new = Link$(); new.back = l$; l$.all.append(new); l$.next = new",
        "l$.next.back is l$, len(l$.all), l$.all[0] is l$, l$.all[-1] is l$.next",
    ),
    "rebinding": Part(
        "total$ = 0; names$ = ['a']; alias$ = names$",
        "total$ += i + 1 if False else 0\nnames$ += [str(i)]",
        "names$, alias$ is names$",
    ),
    "exception": Part(
        "errors$ = []",
        "try:\n    raise ValueError(f'e{i}')\nexcept ValueError as error:\n    errors$.append(error)",
        "[(type(e).__name__, str(e)) for e in errors$]",
    ),
    "own_exception": Part(
        "class Err$(Exception):\n    def __init__(self, code, detail): super().__init__(f'{code}'); self.code = code; self.detail = detail\nerr$ = {}",
        "err$['last'] = Err$(i, [value])",
        "err$['last'].code, err$['last'].detail, str(err$['last'])",
    ),
    "getstate": Part(
        "class Getstate$:\n    def __init__(self): self.n = 0; self.handle = open(os.devnull)\n    def __getstate__(self):\n        d = dict(vars(self)); d.pop('handle'); return d\n"
        "    def __setstate__(self, d): vars(self).update(d); self.handle = None\ngs$ = Getstate$(); made$ = []",
        "gs$.n += 1; made$.append(Getstate$())",
        "gs$.n, [one.n for one in made$], gs$.handle is not None",
    ),
    "singleton": Part(
        "class Single$:\n    _instance = None\n    def __new__(cls):\n        if cls._instance is None: cls._instance = super().__new__(cls)\n        return cls._instance",
        "Single$().n = getattr(Single$(), 'n', 0) + 1",
        "Single$().n, Single$() is Single$()",
    ),
    "metaclass": Part(
        "class Meta$(type):\n    known = {}\n    def __new__(m, name, bases, ns):\n        c = super().__new__(m, name, bases, ns); m.known[name] = c; return c\nclass With$(metaclass=Meta$):\n    n = 0",
        "With$.n += 1; Meta$.known[f'k{i}'] = With$",
        "With$.n, sorted(Meta$.known)",
    ),
    "abstract": Part(
        "class Abstract$(abc.ABC):\n    seen = []\n    @abc.abstractmethod\n    def f(self): ...\nclass Real$(Abstract$):\n    def f(self): self.seen.append(1)\nreal$ = Real$()",
        "real$.f()",
        "Abstract$.seen",
    ),
    "generic": Part(
        "T$ = typing.TypeVar('T$')\nclass Box$(typing.Generic[T$]):\n    def __init__(self, v): self.v = v\nbox$ = Box$[int](0)",
        "box$.v += 1; box$.more = [Box$(i)]",
        "box$.v, box$.more[0].v",
    ),
    "dispatch": Part(
        "@functools.singledispatch\ndef show$(x): return 'any'",
        "show$.register(int, lambda x: 'int')",
        "show$(1), show$('a')",
    ),
    "patched_method": Part(
        "class Patch$:\n    def f(self): return 'old'\npatch$ = Patch$()",
        "patch$.f = types.MethodType(lambda self: f'new {i}', patch$)",
        "patch$.f()",
        once=True,
    ),
    "patched_class": Part(
        "class Patch$:\n    def f(self): return 'old'",
        "def f$(self): return 'new'\nPatch$.f = f$; Patch$.g = property(lambda self: 5); Patch$.h = staticmethod(lambda: 6)",
        "Patch$().f(), Patch$().g, Patch$.h()",
    ),
    "lambda_stored": Part(
        "fns$ = {}; k$ = 2",
        "fns$[i] = lambda x, i=i: x * i + k$",
        "fns$[1](3), fns$[0](5)",
    ),
    "bound_method": Part(
        "class Bus$:\n    def __init__(self): self.calls = []; self.subs = [self.on]\n    def on(self, x): self.calls.append(x)\n    def emit(self, x):\n        for s in self.subs: s(x)\nbus$ = Bus$()",
        "bus$.emit(i); bus$.subs.append(bus$.on)",
        "bus$.calls, len(bus$.subs), all(s.__self__ is bus$ for s in bus$.subs)",
    ),
    "exit_stack": Part(
        "class Timer$(contextlib.ContextDecorator):\n    def __init__(self): self.n = 0; self.inside = False\n    def __enter__(self): self.n += 1; self.inside = True; return self\n    def __exit__(self, *e): self.inside = False\ntimer$ = Timer$()",
        "with timer$: pass",
        "timer$.n, timer$.inside",
    ),
    "tqdm": Part(
        "from tqdm import tqdm\nbar$ = tqdm(total=10, file=io.StringIO())",
        "bar$.update(1); bar$.set_postfix(loss=1)",
        "bar$.n, bar$.postfix",
    ),
    "frame_views": Part(
        "df$ = pd.DataFrame({'a': [1, 2, 3]}); col$ = df$['a']; idx$ = pd.date_range('2020', periods=3)",
        "df$[f'c{i}'] = value; df$.attrs['n'] = i; df$.index = idx$; df$.at[df$.index[0], 'a'] = 9",
        "df$.values.tolist(), df$.attrs, str(df$.index[0]), list(df$.columns)",
    ),
    "category": Part(
        "cat$ = pd.DataFrame({'k': pd.Categorical(['a', 'b']), 't': pd.array([1, None], dtype='Int64')})",
        "cat$.loc[0, 't'] = 5 + i; cat$.drop(columns=['x'], errors='ignore', inplace=True); cat$['x'] = ['u', str(i)]",
        "cat$['t'].astype(str).tolist(), cat$['x'].tolist(), str(cat$['k'].dtype)",
    ),
    "accelerator": Part(
        "from accelerate import Accelerator\nacc$ = Accelerator(); am$ = nn.Linear(4, 1); nn.init.constant_(am$.weight, 0.5); nn.init.zeros_(am$.bias)\n"
        "am$, ao$, al$ = acc$.prepare(am$, torch.optim.SGD(am$.parameters(), lr=0.1), torch.utils.data.DataLoader(rows, batch_size=4, drop_last=True))",
        "for b in al$:\n    acc$.backward(am$(b).pow(2).mean()); ao$.step(); ao$.zero_grad()",
        "am$.weight.tolist(), am$.weight.device.type, acc$.device.type, acc$.step, [b.device.type for b in al$]",
    ),
    "accelerator_hooks": Part(
        "from accelerate import Accelerator\nacc$ = Accelerator(); am$ = nn.Linear(4, 1); nn.init.constant_(am$.weight, 0.5); nn.init.zeros_(am$.bias); hits$ = []\n"
        "h$ = am$.weight.register_hook(lambda g: hits$.append(1)); f$ = am$.register_forward_hook(lambda m, a, o: hits$.append(2))\n"
        "am$, ao$ = acc$.prepare(am$, torch.optim.SGD(am$.parameters(), lr=0.1))",
        "acc$.backward(am$(rows.to(acc$.device)).pow(2).mean()); ao$.step(); ao$.zero_grad(); f$.remove()",
        "am$.weight.tolist(), hits$, len(am$._forward_hooks), len(am$.weight._backward_hooks)",
    ),
    "trainer": Part(
        "from transformers import Trainer, TrainingArguments\nclass TM$(nn.Module):\n    def __init__(self):\n        super().__init__(); self.w = nn.Parameter(torch.ones(4))\n"
        "    def forward(self, x, labels=None): y = (x * self.w).sum(-1); return {'loss': (y - labels).pow(2).mean(), 'logits': y}\n"
        "td$ = [{'x': rows[k], 'labels': torch.tensor(1.0)} for k in range(8)]\n"
        "tr$ = Trainer(TM$(), TrainingArguments('out$', report_to='none', max_steps=2, logging_steps=1, save_strategy='no', disable_tqdm=True, learning_rate=0.01), train_dataset=td$)",
        "tr$.train()",
        "tr$.model.w.tolist(), tr$.state.global_step, [(l.get('loss'), l.get('learning_rate')) for l in tr$.state.log_history]",
    ),
}


LOADERS = frozenset({"trainer", "accelerator"})
"""Their loaders draw from torch's generator in another order on an XLA device than on the CPU."""


@dataclass
class Notebook:
    """Cells, and what to look at. `parts`: the names of the parts, by their numbers; `again`: cells that use them after
    the training."""

    cells: list[str] = field(default_factory=list)
    again: dict[int, str] = field(default_factory=dict)
    see: dict[int, str] = field(default_factory=dict)
    parts: dict[int, str] = field(default_factory=dict)


def compose(seed: int, names: list[str] | None = None) -> Notebook:
    """The notebook of a seed; `names`: of its parts."""
    chance = random.Random(seed)
    names = names or chance.sample(sorted(PARTS), 8)
    if LOADERS & set(names):
        names = [name for name in names if name != "global_random"]
    form = ("statements", "function", "helpers")[seed % 3]
    notebook = Notebook(parts=dict(enumerate(names)))
    inside: list[str] = []
    before: list[str] = []
    uses: list[str] = []
    again: dict[int, str] = {}
    for number, name in notebook.parts.items():
        part = PARTS[name]
        make, use = (text.replace("$", str(number)) for text in (part.make, part.use))
        in_cell = form == "statements" and chance.random() < 0.3 and name not in ("accelerator_hooks",)
        (inside if in_cell else before).append(make)
        if form == "helpers":
            head = f"def use_{number}(i, value, device):\n{_global([use])}"
            before.append(head + textwrap.indent(use, "    "))
            use = f"use_{number}(i, value, device)"
        uses.append(use)
        if not part.once:
            again[number] = use
        notebook.see[number] = part.see.replace("$", str(number))
    chance.shuffle(uses)
    loop = LOOP + textwrap.indent("\n".join(uses), "    ")
    notebook.cells.append(HEAD)
    notebook.cells += before
    body = f"{DEVICE}\n" + "\n".join(inside) + loop
    runs = chance.choice([1, 1, 2]) if not any(PARTS[name].once for name in names) and not inside else 1
    if form == "statements":
        notebook.cells += [f"%%tpu_train\n{body}"] * runs
    else:
        function = f"def training_function():\n{_global(uses)}{textwrap.indent(body, '    ')}\n"
        notebook.cells += [f"%%tpu_train\n{function}"] * runs
    if chance.random() < 0.4:
        notebook.cells.append('device = torch.device("cpu")\ni, value = 1, 0.5')
        notebook.again.update(again)
    return notebook


def _assigned(use: str) -> list[str]:
    """The names that it assigns, which would be a function's own."""
    stored = (node for node in ast.walk(ast.parse(use)) if isinstance(node, ast.Name))
    return sorted({node.id for node in stored if isinstance(node.ctx, ast.Store) and node.id[-1].isdigit()})


def _global(uses: Iterable[str]) -> str:
    names = sorted({name for use in uses for name in _assigned(use)})
    return f"    global {', '.join(names)}\n" if names else ""


def plain(cell: str) -> str:
    """A training cell without the magics: on the CPU."""
    text = cell.replace("%%tpu_train\n", "").replace(DEVICE, 'device = torch.device("cpu")')
    text = text.replace("torch_xla.sync()", "None")
    return f"{text}\ntraining_function()\n" if "def training_function" in text else text


class Shell:
    """A shell of this process with the magics."""

    def __init__(self) -> None:
        self.shell = InteractiveShell.instance()
        self.run("%load_ext tpu_magics")
        self.run("%tpu_init")
        self.first = set(self.shell.user_ns)

    def run(self, cell: str) -> str:
        """Run a cell; returns what it printed. Raises RuntimeError with that if it failed."""
        with capture_output() as output:
            result = self.shell.run_cell(cell)
        if not result.success:
            error = result.error_before_exec or result.error_in_exec
            raise RuntimeError(f"{error}\n{output.stdout[-3000:]}{output.stderr[-2000:]}")
        return str(output.stdout)

    def clear(self) -> None:
        for name in set(self.shell.user_ns) - self.first:
            del self.shell.user_ns[name]


def differences(shell: Shell, notebook: Notebook) -> Iterator[tuple[str, str]]:
    """The parts whose state is neither that of the plain run nor named, each with what was seen."""
    shell.clear()
    own: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        for number, cell in enumerate(notebook.cells):
            exec(compile(plain(cell), f"<plain {number}>", "exec"), own)
        for cell in notebook.again.values():
            exec(cell, own)
        wanted = {number: copy.deepcopy(eval(see, own)) for number, see in notebook.see.items()}
        core = eval(SEE, own)
    said: dict[str, str] = {}
    space = shell.shell.user_ns
    try:
        for cell in notebook.cells:
            shell.run(cell)
            if cell.startswith("%%"):
                said.update(space["_tpu"].left)
    except RuntimeError as error:
        yield "failed", str(error)
        return
    for number, cell in notebook.again.items():
        try:
            shell.run(cell)
        except RuntimeError as error:
            if not is_named(number, said):
                yield notebook.parts[number], str(error)
    for number, see in notebook.see.items():
        try:
            seen = eval(see, space)  # also of what is named: it may change other parts
        except Exception:
            if not is_named(number, said):
                yield notebook.parts[number], f"wanted {wanted[number]}\n{traceback.format_exc(limit=-2)}"
            continue
        if not is_named(number, said) and not alike(seen, wanted[number]):
            yield notebook.parts[number], f"wanted {wanted[number]}\nseen   {seen}\nsaid {said}"
    if not alike(eval(SEE, space), core):
        yield "core", f"wanted {core}\nseen   {eval(SEE, space)}\nsaid {said}"


def is_named(number: int, said: Mapping[str, str]) -> bool:
    return any(re.search(rf"[A-Za-z_]{number}\b", path) for path in said)


def alike(left: Any, right: Any) -> bool:
    """Equal, but for the rounding of another device."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right) or abs(left - right) <= 1e-4 * max(1.0, abs(left))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(alike, left, right))
    return bool(left == right)


def main(words: list[str]) -> None:
    """Print the failures of these seeds, `first count`, as JSON; or of the parts with these names."""
    import torch

    torch.set_num_threads(1)
    shell = Shell()
    found = []
    if words[0].isdigit():
        notebooks = [(seed, compose(seed)) for seed in range(int(words[0]), int(words[0]) + int(words[1]))]
    else:
        notebooks = [(seed, compose(seed, list(words))) for seed in range(3)]
    for seed, notebook in notebooks:
        try:
            found += [(seed, name, text) for name, text in differences(shell, notebook)]
        except Exception:
            found.append((seed, "generator", traceback.format_exc()))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
