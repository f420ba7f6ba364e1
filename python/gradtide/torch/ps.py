"""Training with parameter servers over gloo, with pulls in TicTac's order.

The first ranks are workers, the last ones are dedicated servers. Training is synchronous, as with TensorFlow's
SyncReplicas:

    worker    step()         requests the parameters from each server, in random order
    server                   sends parameter i when the worker's counter is i, so that transfers are in order
    worker    forward        waits for each parameter at its first use
    worker    backward       pushes each gradient as soon as it is computed
    server                   averages the gradients when it has those of all workers, and steps the user's optimizer

Source: Hashemi et al., TicTac (2019), section 5.1. Parameters are numbered from 0 to n-1. The sender has a counter for
each worker and iteration, and increments it when a transfer is handed to the network. The network keeps this order,
because all transfers between a worker and a server share one TCP connection.
"""

import random
import threading
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradtide.errors import TrainingError
from gradtide.torch.crossiter import InFlight, share_state, updates_by_element
from gradtide.torch.deferred import Deferral, can_defer, is_held
from gradtide.torch.groups import several

REQUEST, DONE, ORDER, PULL, PUSH = range(5)
"""Tags of messages. REQUEST: numbers of the requested parameters. DONE: end of a worker's iteration, with settings of
the optimizer. ORDER: numbers of the parameters that follow. PULL: a parameter. PUSH + i: gradient of parameter i."""
STEP, GOOD_BYE = 0.0, 1.0
"""First number of a DONE message: another iteration follows, or the worker leaves."""


ON_SERVERS = "it is on its way to a server. Clipping, accumulation and code that reads .grad need DDP"


@dataclass
class Pulls:
    """Counters of the parameters that a worker has received.

    Attributes:
        count: number of parameters received.
        out_of_order: number of parameters that arrived although a smaller number of the same server was missing.
    """

    count: int = 0
    out_of_order: int = 0


class Counter:
    """Releases a worker's parameters for sending in ascending order of number, whatever the order of the requests."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._left = sorted(numbers, reverse=True)  # not released yet; the smallest is last
        self._waiting: set[int] = set()

    def request(self, number: int) -> Iterator[int]:
        """Add the request of a parameter, and yield the numbers of the parameters that can now be sent."""
        self._waiting.add(number)
        while self._left and self._left[-1] in self._waiting:
            yield self._left.pop()


class Servers(torch.nn.Module):  # type: ignore[misc]
    """A module whose parameters are stored on servers. Made by `wrap`.

    Attributes:
        module: the user's module.
        order: names of the parameters in sending order; empty if each worker's requests determine the order.
        serves: whether this rank is a server, on which `serve` must be called.
        pulls: counters of this worker.
    """

    def __init__(
        self,
        module: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        group: Any,
        servers: int,
        order: Sequence[str],
    ) -> None:
        super().__init__()
        self.module, self.order, self.pulls = module, tuple(order), Pulls()
        self._optimizer, self._group = optimizer, group
        self._rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._workers = list(range(size - servers))
        self.serves = self._rank >= len(self._workers)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        place = {name: number for number, name in enumerate(self.order)}
        self._names, parameters = zip(*sorted(trained, key=lambda one: place.get(one[0], 0)), strict=True)
        self._trained: tuple[torch.nn.Parameter, ...] = parameters
        self._owner = _shared_out([p.nbytes for p in parameters], range(len(self._workers), size))
        self._shuffle = random.Random(self._rank)

    def _owned_by(self, server: int) -> list[int]:
        return [number for number, owner in enumerate(self._owner) if owner == server]

    def serve(self) -> None:
        """Serve parameters until all workers have unwrapped their models.

        Raises:
            TrainingError: if this rank is a worker, or a worker is lost.
        """
        if not self.serves:
            raise TrainingError(f"rank {self._rank} is a worker: only the last ranks serve")
        mine = self._owned_by(self._rank)
        try:
            goes_on = True
            while goes_on:
                deliveries = []
                for worker in self._workers:
                    requested = torch.empty(len(mine), dtype=torch.int64)
                    dist.recv(requested, worker, group=self._group, tag=REQUEST)
                    deliveries.append(threading.Thread(target=self._deliver, args=(worker, requested.tolist())))
                    deliveries[-1].start()
                goes_on = self._update(mine, deliveries)
        except RuntimeError as error:
            if isinstance(error, TrainingError):
                raise
            raise TrainingError(f"server {self._rank} has lost a worker: {error}") from error

    def _deliver(self, worker: int, numbers: Sequence[int]) -> None:
        counter = Counter(numbers)
        order = [number for one in numbers for number in counter.request(one)] if self.order else numbers
        dist.send(torch.tensor(order, dtype=torch.int64), worker, group=self._group, tag=ORDER)
        for number in order:
            dist.send(self._trained[number].detach(), worker, group=self._group, tag=PULL)

    def _update(self, mine: Sequence[int], deliveries: Sequence[threading.Thread]) -> bool:
        """Receive the gradients of an iteration and step the optimizer. Return whether another iteration follows."""
        gradients = {
            (worker, number): torch.empty_like(self._trained[number], memory_format=torch.contiguous_format)
            for worker in self._workers
            for number in mine
        }
        works = [
            dist.irecv(gradient, worker, group=self._group, tag=PUSH + number)
            for (worker, number), gradient in gradients.items()
        ]
        done = [torch.tensor([STEP, *_settings(self._optimizer)], dtype=torch.float64) for _ in self._workers]
        for worker in self._workers:
            dist.recv(done[worker], worker, group=self._group, tag=DONE)
        # The threads send parameters, which must not change before they are sent.
        for thread in deliveries:
            thread.join()
        if any(float(one[0]) == GOOD_BYE for one in done):
            return False
        for work in works:
            work.wait()
        _set(self._optimizer, done[0][1:].tolist())
        for number in mine:
            mean = gradients[0, number].detach()
            for worker in self._workers[1:]:
                mean += gradients[worker, number]
            self._trained[number].grad = mean.div_(len(self._workers))
        self._optimizer.step()
        for number in mine:
            self._trained[number].grad = None
        return True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. On a server, this is allowed only inside `torch.no_grad()`."""
        if self.serves and torch.is_grad_enabled():
            raise TrainingError(f"rank {self._rank} serves and does not train: call serve() there")
        return self.module(*args, **kwargs)


class Worker(Servers):
    """A module on a worker, with hooks on its parameters and its optimizer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed = threading.Condition()
        self._arrived = [True] * len(self._trained)
        self._fault = ""
        self._received = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in self._trained]
        self._number = {id(p): number for number, p in enumerate(self._trained)}
        self._deferral = Deferral(lambda p: self._take(self._number[id(p)]))
        self._unread = [InFlight(p, name, ON_SERVERS) for p, name in zip(self._trained, self._names, strict=True)]
        self._pushes: dict[int, tuple[Any, torch.Tensor]] = {}
        self._receivers: list[threading.Thread] = []
        self._handles = [p.register_post_accumulate_grad_hook(self._push) for p in self._trained]
        self._handles.append(self._optimizer.register_state_dict_pre_hook(_refuse_state))
        self._own_step = vars(self._optimizer).get("step")

        def step(optimizer: Any, closure: Any = None) -> None:
            optimizer._opt_called = True  # checked by learning rate schedulers
            self._step(closure)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        vars(self._optimizer)["step"] = types.MethodType(step, self._optimizer)
        self._request()

    def _push(self, parameter: "torch.nn.Parameter") -> None:
        number = self._number[id(parameter)]
        if number in self._pushes:
            raise TrainingError(f"{self._names[number]!r} got a second gradient before step(): servers take one")
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise TrainingError(
                f"the gradient of {self._names[number]!r} is sparse, which parameter servers do not take"
            )
        gradient = gradient.contiguous()
        work = dist.isend(gradient, self._owner[number], group=self._group, tag=PUSH + number)
        self._pushes[number] = work, gradient
        parameter.grad = self._unread[number]

    def _step(self, closure: Any = None) -> None:
        if closure is not None:
            raise TrainingError("step(closure) cannot run on servers")
        if not self._pushes:
            return
        lacking = [name for number, name in enumerate(self._names) if number not in self._pushes]
        if lacking:
            raise TrainingError(f"no gradient for {several(lacking)}: freeze unused parameters before wrap")
        for work, _ in self._pushes.values():
            work.wait()
        self._pushes.clear()
        self._command(STEP)
        for number in range(len(self._trained)):  # including unused parameters
            self._take(number)
        self._request()

    def _request(self) -> None:
        """Request the parameters from every server in a random order, and start receiving them."""
        for thread in self._receivers:
            thread.join()
        self._arrived = [False] * len(self._trained)
        held = [number for number, parameter in enumerate(self._trained) if is_held(parameter)]
        for parameter in self._trained:
            self._deferral.put_off(parameter)
        self._receivers = []
        for server in sorted(set(self._owner)):
            numbers = self._owned_by(server)
            self._shuffle.shuffle(numbers)
            dist.send(torch.tensor(numbers), server, group=self._group, tag=REQUEST)
            self._receivers.append(threading.Thread(target=self._receive, args=(server, len(numbers)), daemon=True))
            self._receivers[-1].start()
        for number in held:
            self._take(number)

    def _command(self, what: float) -> None:
        message = torch.tensor([what, *_settings(self._optimizer)], dtype=torch.float64)
        for server in sorted(set(self._owner)):
            dist.send(message, server, group=self._group, tag=DONE)

    def _receive(self, server: int, count: int) -> None:
        """Receive `count` parameters from a server, and count those that arrive out of order."""
        try:
            order = torch.empty(count, dtype=torch.int64)
            dist.recv(order, server, group=self._group, tag=ORDER)
            left = sorted(order.tolist())
            for number in order.tolist():
                dist.recv(self._received[number], server, group=self._group, tag=PULL)
                with self._changed:
                    self.pulls.count += 1
                    self.pulls.out_of_order += number != left[0]
                    left.remove(number)
                    self._arrived[number] = True
                    self._changed.notify_all()
        except RuntimeError as error:
            with self._changed:
                self._fault = f"server {server} is lost: {error}"
                self._changed.notify_all()

    def _take(self, number: int) -> None:
        """Wait until a parameter is received, and copy it into the module."""
        parameter = self._trained[number]
        with self._changed:
            self._changed.wait_for(lambda: self._arrived[number] or self._fault)
            if not self._arrived[number]:
                raise TrainingError(self._fault)
        if self._deferral.end(parameter):
            with torch.no_grad():
                parameter.copy_(self._received[number])

    def close(self) -> None:
        """Receive the final weights, notify the servers, remove all hooks, and release the wrapper's tensors."""
        for number in range(len(self._trained)):
            self._take(number)
        self._command(GOOD_BYE)
        for thread in self._receivers:
            thread.join()
        for handle in self._handles:
            handle.remove()
        del vars(self._optimizer)["step"]
        if self._own_step is not None:
            vars(self._optimizer)["step"] = self._own_step
        for parameter, unread in zip(self._trained, self._unread, strict=True):
            if parameter.grad is unread:
                parameter.grad = None
        self._deferral.close()
        self._trained, self._received, self._unread = (), [], []


def wrap(
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    *,
    servers: int = 1,
    order: str | Sequence[str] = "tic",
    example: Sequence[Any] = (),
) -> Servers:
    """Set up parameter servers instead of `DistributedDataParallel(model)`. Every rank must call this.

    Args:
        model: the bare module, on the CPU. Its weights are replaced by those of the first rank.
        optimizer: optimizer of all parameters. Workers call its `step` as usual, but only servers execute it.
        servers: number of servers, which are the last ranks.
        order: order in which servers send parameters. `tic`: TicTac's TIC, computed from the traced graph of the model.
            `random`: a new random order in each iteration. Or a list of parameter names, the most urgent first.
        example: inputs of the model's forward pass, for the trace of `tic`.

    Returns:
        On a worker, the module to call instead of the model until `unwrap`. On a server (`serves` is true), an object
        whose `serve` must be called.

    Raises:
        TrainingError: if servers cannot train the model or use the optimizer, or the order lacks parameters.

    Source:
        Hashemi et al., TicTac (2019), sections 3.2 (TIC) and 5.1 (enforcement).
    """
    if not dist.is_initialized() or not 0 < servers < dist.get_world_size():
        size = dist.get_world_size() if dist.is_initialized() else 1
        raise TrainingError(f"{size} ranks cannot have {servers} servers and a worker: start more ranks")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained or any(p.device.type != "cpu" for p in trained.values()):
        raise TrainingError("parameter servers take a model on the CPU with parameters that are trained")
    if others := [name for name, p in trained.items() if not can_defer(p)]:
        raise TrainingError(f"{several(others)} is in shared memory or of a tensor class of its own")
    if not updates_by_element(optimizer):
        raise TrainingError(f"servers update a few parameters each, which {type(optimizer).__name__} may not bear")
    names = [_order(model, order, example)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(names)
    if isinstance(names[0], str):
        raise TrainingError(names[0])
    if names[0] and sorted(names[0]) != sorted(trained):
        lacking = sorted(set(trained) - set(names[0])) or sorted(set(names[0]) - set(trained))
        raise TrainingError(f"order: {several(lacking)} is missing, or is not a trained parameter")
    share_state(model, dist.group.WORLD)
    group = dist.new_group(backend="gloo")
    kind = Servers if dist.get_rank() >= dist.get_world_size() - servers else Worker
    return kind(model, optimizer, group, servers, names[0] or ())


def unwrap(model: Servers) -> "torch.nn.Module":
    """Undo `wrap`: return the user's module, on a worker with the final weights of the servers."""
    if isinstance(model, Worker):
        model.close()
    return model.module


def _order(model: "torch.nn.Module", order: str | Sequence[str], example: Sequence[Any]) -> Any:
    """Return the parameter names in sending order, an empty list for a random order, or an error message."""
    if order == "random":
        return []
    if order != "tic":
        return f"order is {order!r}, and can be tic, random or a list of names" if isinstance(order, str) else [*order]
    if not example:
        return "order tic traces the model: pass example=(inputs,)"
    from gradtide.errors import ProfileError
    from gradtide.profiling import op_dag
    from gradtide.studies.order import order as ordered

    try:
        graph = op_dag(model, *example)
    except ProfileError as error:
        return f"order tic: {error}"
    names = {op["id"]: op["name"].removesuffix("/read") for op in graph["ops"] if op["kind"] == "recv"}
    ranks = ordered(graph, "tic").priority
    found = [names[op] for op in sorted(ranks, key=lambda op: (ranks[op], op))]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return [name for name in found if name in set(trained)] + [name for name in trained if name not in set(found)]


def _shared_out(sizes: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Return the server of each parameter. The largest parameter goes first, to the server with the fewest bytes."""
    load, owner = dict.fromkeys(servers, 0), [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        owner[number] = min(load, key=lambda server: (load[server], server))
        load[owner[number]] += sizes[number]
    return owner


def _settings(optimizer: "torch.optim.Optimizer") -> list[float]:
    """Return all numbers in the parameter groups, such as learning rates."""
    return [
        float(one)
        for group in optimizer.param_groups
        for key in sorted(group)
        for one in (group[key] if isinstance(group[key], tuple) else (group[key],))
        if type(one) in (int, float)
    ]


def _set(optimizer: "torch.optim.Optimizer", numbers: list[float]) -> None:
    rest = iter(numbers)
    for group in optimizer.param_groups:
        for key in sorted(group):
            value = group[key]
            if isinstance(value, tuple):
                group[key] = tuple(type(one)(next(rest)) if type(one) in (int, float) else one for one in value)
            elif type(value) in (int, float):
                group[key] = type(value)(next(rest))


def _refuse_state(*_: Any) -> None:
    raise TrainingError("the optimizer's state is on the servers: save it there, or train with DDP")
