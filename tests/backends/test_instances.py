"""What instances() finds, and what it does to other threads."""

from __future__ import annotations

import gc
import sys
import threading
from typing import NoReturn

from tpu_magics.backends import instances


class One:
    pass


class Derived(One):
    pass


class Proxy:
    @property
    def __class__(self) -> NoReturn:  # as a lazy object has it
        raise AssertionError


def test_those_of_the_class_and_of_derived_ones_are_found() -> None:
    kept = [One(), Derived(), Proxy(), One]
    assert {id(one) for one in instances.instances(One)} == {id(one) for one in kept[:2]}
    assert [type(one) for one in instances.instances(Derived)] == [Derived]


def test_a_thread_that_fills_a_tuple_goes_on() -> None:
    """With a list of all objects about one call in ten made it fail here."""
    failed: list[SystemError] = []
    done = threading.Event()

    def fill() -> None:
        while not done.is_set():
            try:
                tuple(number for number in range(15))
            except SystemError as error:
                failed.append(error)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=fill)
    gc.freeze()  # the others' objects are not listed: that takes time
    try:
        sys.setswitchinterval(1e-5)
        thread.start()
        for _ in range(5_000):
            instances.instances(One)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
        gc.unfreeze()
    assert not failed
