"""The metadata server: real servers that answer, drip or are silent, and when none is asked."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tpu_magics.host.doctor.facts import METADATA_SECONDS, METADATA_SERVER, Answer, ask_metadata_server

from . import doctor_host, fake_hosts
from .doctor_host import examined, one

GROUP = "Metadata server"
GENEROUS = 8.0  # seconds: a machine may be busy; a look-up or a connection without a limit would take longer
HEAD = b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\n\r\n"


@contextmanager
def serving(answer: Callable[[socket.socket], None] | None) -> Iterator[tuple[str, int]]:
    """A real server on this machine. None: it accepts (the kernel does) and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        thread = threading.Thread(target=_serve, args=(server, answer)) if answer else None
        if thread:
            thread.start()
        yield server.getsockname()[:2]
        if thread:
            thread.join()


def _serve(server: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    connection, _ = server.accept()
    with connection:
        connection.settimeout(30)
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += connection.recv(4096)
        try:
            answer(connection, asked) if answer is _echoes else answer(connection)
        except OSError:  # the one that asked has gone
            pass


def _tells(connection: socket.socket) -> None:
    connection.sendall(HEAD + doctor_host.TPU_ENV.encode())


def _echoes(connection: socket.socket, asked: bytes) -> None:
    connection.sendall(HEAD + asked)


def _refuses(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nmetadata-flavor: google\r\n\r\nno")


def _is_another(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nServer: router\r\n\r\n<html>log in</html>")


def _drips(connection: socket.socket) -> None:
    for _ in range(200):
        connection.sendall(b"H")
        time.sleep(0.1)


def _floods(connection: socket.socket) -> None:
    for _ in range(10_000):
        connection.sendall(HEAD + b"x" * 60_000)


def asked(answer: Callable[[socket.socket], None] | None, seconds: float = 20) -> Answer:
    with serving(answer) as address:
        return ask_metadata_server(address, seconds)


def test_the_limit_leaves_room_below_two_seconds_and_no_name_is_looked_up() -> None:
    assert METADATA_SECONDS <= 1.8
    assert ipaddress.ip_address(METADATA_SERVER[0]).is_link_local


def test_a_server_that_describes_a_tpu() -> None:
    answer = asked(_tells)
    assert (answer.status, answer.accelerator) == (200, "v5litepod-4")


def test_what_is_asked_for_is_tpu_env_with_googles_header() -> None:
    question = asked(_echoes).text  # type: ignore[arg-type]
    assert question.startswith("GET /computeMetadata/v1/instance/attributes/tpu-env HTTP/1.0\r\n")
    assert "Host: metadata.google.internal\r\n" in question and "Metadata-Flavor: Google\r\n" in question


def test_a_server_without_a_tpu_and_one_that_is_none() -> None:
    assert asked(_refuses).status == 404
    assert asked(_refuses).accelerator == ""
    assert asked(_is_another) == Answer(0, "another server answered")


@pytest.mark.parametrize("answer", [None, _drips])
def test_one_that_never_answers_and_one_that_drips_cost_their_limit(answer: object) -> None:
    began = time.monotonic()
    with serving(answer) as address:  # type: ignore[arg-type]
        found = ask_metadata_server(address, 0.5)
        took = time.monotonic() - began
    assert (found.status, found.text) == (0, "no answer")
    assert 0.4 < took < GENEROUS


def test_one_that_floods_is_read_up_to_a_limit() -> None:
    answer = asked(_floods)
    assert answer.status == 200 and len(answer.text) < 200_000


def test_a_port_where_nobody_listens_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    answer = ask_metadata_server(address, 20)
    assert answer.status == 0 and "refused" in answer.text


# -- what it means -------------------------------------------------------------------------------------------------


def forbidden() -> Answer:
    raise AssertionError("the metadata server was asked")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (fake_hosts.plain, "This host does not seem to be in Google Cloud."),
        (fake_hosts.gke, "TPU_SKIP_MDS_QUERY=true is set: torch_xla and libtpu do not query it either."),
        (fake_hosts.colab_v5e_1, "TPU_SKIP_MDS_QUERY=1 is set: torch_xla and libtpu do not query it either."),
    ],
)
def test_it_is_not_asked_without_need(tmp_path, build, why) -> None:
    check = one(examined(build(tmp_path), ask_metadata=forbidden), GROUP, "tpu-env")
    assert (check.state, check.what, check.why) == ("not available", "It was not queried.", why)


def test_the_machines_name_is_a_sign_too(tmp_path) -> None:
    host = fake_hosts.plain(tmp_path)
    fake_hosts.write(host.root / "sys/class/dmi/id/product_name", "Google Compute Engine\n")
    check = one(examined(host, ask_metadata=lambda: doctor_host.MISSING), GROUP, "tpu-env")
    assert (check.state, check.why) == ("not available", "It has no tpu-env for this host (status 404).")


def test_it_is_asked_once_and_what_it_says_is_shown(tmp_path) -> None:
    times: list[int] = []
    answers = lambda: times.append(1) or doctor_host.DESCRIBES  # noqa: E731
    checks = examined(fake_hosts.tpu_vm_v5e(tmp_path), ask_metadata=answers)
    assert one(checks, GROUP, "tpu-env").what == "It describes this TPU: v5litepod-4"
    assert times == [1]


@pytest.mark.parametrize(
    ("answer", "what", "why"),
    [
        (
            doctor_host.MISSING,
            "does not describe this host's TPU (status 404)",
            "Failed to get 'tpu-env' from instance",
        ),
        (doctor_host.SILENT, "could not be reached (no answer)", "waits without a timeout"),
    ],
)
def test_a_tpu_that_nobody_describes_is_broken(tmp_path, answer, what, why) -> None:
    check = one(examined(fake_hosts.tpu_vm_v5e(tmp_path), ask_metadata=lambda: answer), GROUP, "tpu-env")
    assert check.state == "broken" and what in check.what and why in check.why
    assert check.command == (
        'import os; os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE="v5litepod-4", TPU_WORKER_ID="0", '
        'TPU_HOST_BOUNDS="1,1,1", TPU_CHIPS_PER_HOST_BOUNDS="2,2,1", TPU_WORKER_HOSTNAMES="localhost")'
    )
    assert check.fix is None, "what is guessed is for a person to look at"


def test_what_mends_it_is_what_the_doctor_wants_to_see(tmp_path) -> None:
    host = fake_hosts.tpu_vm_v5e(tmp_path)
    check = one(examined(host, ask_metadata=lambda: doctor_host.SILENT), GROUP, "tpu-env")
    environ = type("os", (), {"environ": host.environ})
    exec(check.command.removeprefix("import os; "), {"os": environ})
    again = examined(host, ask_metadata=forbidden)
    assert doctor_host.ill(again) == {}


def test_all_checks_with_a_silent_server_take_its_limit_and_little_more(tmp_path) -> None:
    host = fake_hosts.tpu_vm_v4(tmp_path)
    began = time.monotonic()
    with serving(None) as address:
        checks = examined(host, ask_metadata=lambda: ask_metadata_server(address))
    assert METADATA_SECONDS * 0.9 < time.monotonic() - began < GENEROUS
    assert doctor_host.ill(checks) == {(GROUP, "tpu-env"): "broken"}


@pytest.mark.parametrize(
    ("no_proxy", "state"),
    [
        ("", "warning"),
        ("localhost,.example.com", "warning"),
        ("metadata.google.internal", ""),
        ("localhost, .google.internal", ""),
        ("*", ""),
    ],
)
def test_a_proxy_that_torch_xlas_question_would_go_to(tmp_path, no_proxy, state) -> None:
    host = fake_hosts.tpu_vm_v5e(tmp_path)
    host.environ.update(http_proxy="http://proxy:3128", **({"no_proxy": no_proxy} if no_proxy else {}))
    found = [check for check in examined(host) if (check.group, check.name) == (GROUP, "Proxy")]
    assert [check.state for check in found] == ([state] if state else [])
    for check in found:
        assert check.command == f"%env no_proxy={f'{no_proxy},' if no_proxy else ''}metadata.google.internal"
