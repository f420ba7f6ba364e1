"""The sender of gradients and the control connection of wrap, each by itself.

Needs torch: `make test-torch` installs it.
"""

import threading
import time

import pytest
import torch

import torch_ranks
from gradtide.errors import TrainingError
from gradtide.torch import control, guard, sender

pytestmark = torch_ranks.MARKS


# The sender by itself


class LoneGuard(guard.Guard):
    """A guard without connections, which records its messages."""

    def __init__(self, *_):
        self.sent = []
        vars(self).update(fault=None, departed=None, changed=threading.Condition(), timeout_s=5, _lost_at=0)
        vars(self).update(
            _rank=0, _steps=0, _last_step=0, _awaited={}, _under_way=0, _own_under_way=0, _peers={0: guard._Peer()}
        )

    def start(self):
        pass

    def send(self, kind, a, b=0):
        self.sent.append((a, b))

    def _query_missing(self):
        pass


@pytest.fixture
def lone_sender(monkeypatch):
    """A sender of the first rank whose sums end when the test says so: `begun` holds (tensor, future)."""
    begun = []

    class Work:
        def __init__(self, tensor):
            self.future = torch.futures.Future()
            begun.append((tensor, self.future))

        def get_future(self):
            return self.future

    monkeypatch.setattr(sender, "Guard", LoneGuard)
    monkeypatch.setattr(sender.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(sender.dist, "all_reduce", lambda tensor, group, async_op: Work(tensor))
    one = sender.Sender(None, None, [], piece_bytes=16)
    return one, begun


@pytest.mark.parametrize(
    ("credit", "told"),
    [
        # What is under way when the more urgent transfers are ready is of the first; then by rank, in pieces' order.
        (1, [(7, 0), (9, 0), (8, 0), (8, 1), (7, 1), (7, 2)]),
        (2, [(7, 0), (7, 1), (9, 0), (8, 0), (8, 1), (7, 2)]),
    ],
)
def test_the_most_urgent_piece_goes_next_and_as_many_as_planned_are_under_way(lone_sender, credit, told):
    one, begun = lone_sender
    one._credit = credit
    one.submit(7, 2, torch.zeros(12))  # three pieces of 16 bytes
    one.submit(8, 1, torch.zeros(5))  # two
    one.submit(9, 0, torch.zeros(1))
    place = 0
    while place < len(begun):
        assert len(begun) - place == min(credit, 6 - place)
        begun[place][1].set_result(None)
        place += 1
    assert one.guard.sent == told
    assert sorted(tensor.numel() for tensor, _ in begun) == [1, 1, 4, 4, 4, 4]
    assert one.tally.pieces == 6
    assert one.tally.bytes == 18 * 4


def test_a_failed_sum_is_an_error_for_who_waits_and_for_who_submits(lone_sender, monkeypatch):
    one, begun = lone_sender
    monkeypatch.setattr(guard, "GRACE_S", 0.0)
    transfer = one.submit(1, 0, torch.zeros(2))
    begun[0][1].set_exception(RuntimeError("Connection closed by peer\nmore"))
    with pytest.raises(TrainingError, match=r"the sum of gradients failed: Connection closed by peer$"):
        one.wait(transfer)
    with pytest.raises(TrainingError, match="Connection closed"):
        one.submit(2, 0, torch.zeros(2))


# The control connection by itself


def connected(size):
    heard = [[] for _ in range(size)]
    shared, ready = [], threading.Event()

    def share(value):
        if value is not None:
            shared.append(value)
            ready.set()
        ready.wait(10)
        return shared[0]

    ends = [None] * size

    def make(rank):
        ends[rank] = control.Control(rank, size, share, lambda *message: heard[rank].append(message))
        ends[rank].start()

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "meeting_address", lambda: "127.0.0.1")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    return ends, heard


def comes_true(condition):
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def test_messages_reach_every_rank_in_their_order():
    ends, heard = connected(3)
    orders = [(control.SEND, key, key % 3) for key in range(500)]
    for order in orders:
        ends[0].send(*order)
    assert comes_true(lambda: all(len(of_rank) == len(orders) for of_rank in heard[1:]))
    assert heard[1] == heard[2] == orders
    for end in ends:
        end.close()
    assert not any(thread.name == "gradtide control" for thread in threading.enumerate())


def test_who_says_good_bye_has_left_and_who_does_not_is_lost():
    ends, heard = connected(3)
    ends[1].send(control.LEFT, 1, 7)
    ends[1].close()
    assert comes_true(lambda: (control.LEFT, 1, 7) in heard[0] and (control.LEFT, 1, 7) in heard[2])
    ends[2]._peers[0].shutdown(2)  # as the kernel does for a process that has died
    assert comes_true(lambda: (control.LOST, 2, 0) in heard[0])
    assert (control.LOST, 1, 0) not in heard[0]
    for end in (ends[0], ends[2]):
        end.close()
