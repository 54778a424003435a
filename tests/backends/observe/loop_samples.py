"""Small programs whose loop over `loader` is looked at (test_step_counts.py). They are run, with these names: `Config`,
`config`, `args`, `epochs`, `settings`, `items`, `counted`, `tqdm`, `trange`."""

NAMES = """
from types import SimpleNamespace

class Config:
    epochs = 3

    @property
    def asked(self):
        raise AssertionError("it was run")

    def __getattr__(self, name):
        raise AssertionError("it was run")

class Guarded:
    def __getattribute__(self, name):
        raise AssertionError("it was run")

class Sized:
    def __len__(self):
        raise AssertionError("it was run")

config, args, epochs = Config(), SimpleNamespace(epochs=3), 3
settings, items, guarded, sized = {"num": {"epochs": 3}}, ["a", "b", "c"], Guarded(), Sized()

def counted():
    return range(3)

def trange(count):
    return range(count)

def tqdm(iterable, desc=""):
    for one in iterable:
        yield one
"""

# How often the loop begins is known, and is what happens.
KNOWN = """
## once
for batch in loader:
    pass

## on one line
for batch in loader: pass

## an integer
for _ in range(3):
    for batch in loader:
        pass

## a name
for epoch in range(epochs):
    for batch in loader:
        pass

## from a start
first = 2
for epoch in range(first, first + epochs):
    for batch in loader: pass

## a stride
for epoch in range(0, 2 * epochs - 1, 2):
    for batch in loader:
        pass

## an attribute
for epoch in range(args.epochs):
    for batch in loader:
        pass

## an attribute of its class
for epoch in range(config.epochs):
    for batch in loader:
        pass

## items
for epoch in range(settings["num"]["epochs"]):
    for batch in loader:
        pass

## the length of a list
for epoch in range(len(items)):
    for batch in loader:
        pass

## a range by its name
numbers = range(3)
for epoch in numbers:
    for batch in loader:
        pass

## enumerate
for number, epoch in enumerate(range(3)):
    for n, batch in enumerate(loader):
        pass

## progress bars
for epoch in tqdm(range(3), desc="epochs"):
    for n, batch in tqdm(enumerate(loader)):
        pass

## trange
for epoch in trange(3):
    for batch in loader:
        pass

## a function
def train(count):
    for epoch in range(count):
        for batch in loader:
            pass
train(3)

## a function for each epoch
def one_epoch(given):
    for batch in given:
        pass
for _ in range(3): one_epoch(loader)

## a method
class Trainer:
    def __init__(self):
        self.count, self.loader = 3, loader
    def fit(self):
        for _ in range(self.count):
            for batch in self.loader:
                pass
Trainer().fit()

## a generator
def batches():
    for batch in loader:
        yield batch
for _ in range(3):
    for batch in batches():
        pass

## two loops around it
for fold in range(2):
    for epoch in range(3):
        for batch in loader:
            pass

## after a loop
for epoch in range(5):
    pass
else:
    for batch in loader:
        pass

## a branch outside of loops
if epochs:
    for batch in loader:
        pass

## with and try
import contextlib
for _ in range(3):
    with contextlib.suppress(OSError):
        try:
            for batch in loader:
                pass
        finally:
            pass

## names of the function outside
def outer():
    count = 3
    def inner():
        for _ in range(count):
            for batch in loader:
                pass
    inner()
outer()

## called by a lambda
def train(count):
    for _ in range(count):
        for batch in loader:
            pass
(lambda: train(3))()

## a property gives the loader
class Data:
    @property
    def loader(self):
        return loader
data = Data()
for batch in data.loader:
    pass

## a function gives the loader
def made():
    return loader
for batch in made():
    pass
"""

# Nothing is told.
UNKNOWN = """
## while
number = 0
while number < 3:
    number += 1
    for batch in loader:
        pass

## the condition of while
def train():
    for batch in loader:
        pass
number = 3
while train() or number:
    number -= 1

## over a list
for item in items:
    for batch in loader:
        pass

## what a function returns
for epoch in counted():
    for batch in loader:
        pass

## a branch in a loop
for epoch in range(4):
    if epoch % 2:
        for batch in loader:
            pass

## an exception in a loop
for epoch in range(3):
    try:
        raise ValueError
    except ValueError:
        for batch in loader:
            pass

## match in a loop
for epoch in range(3):
    match epoch:
        case 1:
            for batch in loader:
                pass

## a branch of a function that is called in a loop
def sometimes(number):
    if number % 2:
        for batch in loader:
            pass
for epoch in range(4):
    sometimes(epoch)

## a comprehension
def train(number):
    for batch in loader:
        pass
[train(number) for number in range(3)]

## a generator expression around it
def train(number):
    for batch in loader:
        pass
list(train(number) for number in range(3))

## no loop
next(iter(loader))

## another range
def range(count):
    return [1, 2]
for epoch in range(3):
    for batch in loader:
        pass

## a number that is computed
import math
for epoch in range(math.ceil(2.5)):
    for batch in loader:
        pass

## in a loop over a list of batches
for batch in [1, 2]:
    for inner in loader:
        pass
"""


def programs(text: str) -> dict[str, str]:
    """The programs by their names."""
    parts = [part.partition("\n") for part in text.split("## ")[1:]]
    return {name: source.strip() + "\n" for name, _, source in parts}
