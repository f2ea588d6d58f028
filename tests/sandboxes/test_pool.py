"""The pool: few starts at once, in order, nothing left behind by whoever gave up. Its boxes are plain processes."""

from __future__ import annotations

import asyncio

import pytest

from sandboxes import local
from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import PoolBusy, SandboxClosed, SandboxStartError, SandboxTimeout
from sandboxes.pool import SandboxPool
from tests.sandboxes.cancelling import cancelled_at

SPEC = SandboxSpec(env={"A": "1"})
SAME_SPEC = SandboxSpec(env={"A": "1"})
OTHER_SPEC = SandboxSpec(env={"A": "2"})


class Backend:
    """Starts local boxes when it is let, and counts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.starting = 0
        self.most = 0
        self.boxes: list[Sandbox] = []
        self.fail = False

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.starting += 1
        self.most = max(self.most, self.starting)
        try:
            await self.open.wait()
            if self.fail:
                raise SandboxStartError("no")
            box = await local.start(spec)
        finally:
            self.starting -= 1
        self.boxes.append(box)
        return box

    def living(self) -> int:
        return sum(not box.closed for box in self.boxes)


@pytest.fixture
async def backend():
    return Backend()


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_box_is_open_inside_its_block_and_closed_after_it(backend):
    async with SandboxPool(backend.start) as pool, pool.box(SPEC) as box:
        assert (await box.exec("echo $A")).stdout == b"1\n"
    assert box.closed


async def test_no_more_boxes_start_at_once_than_allowed(backend):
    async with SandboxPool(backend.start, starting=2) as pool:
        boxes = await asyncio.gather(*(pool.take(SPEC) for _ in range(5)))
        assert (backend.most, len(backend.boxes)) == (2, 5)
        await asyncio.gather(*(box.close() for box in boxes))


async def test_whoever_asks_first_is_served_first(backend):
    backend.open.clear()
    served: list[int] = []

    async def ask(number: int) -> None:
        async with pool.box(SPEC):
            served.append(number)

    async with SandboxPool(backend.start, starting=1) as pool, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(number))
            await asyncio.sleep(0)
        backend.open.set()
    assert served == [0, 1, 2, 3]


async def test_one_that_is_cancelled_while_waiting_or_starting_lets_the_next_through(backend):
    backend.open.clear()
    async with SandboxPool(backend.start, starting=1) as pool:
        starting, waiting = asyncio.create_task(pool.take(SPEC)), asyncio.create_task(pool.take(SPEC))
        await until(lambda: backend.starting == 1)
        waiting.cancel()
        starting.cancel()
        await asyncio.wait({starting, waiting})
        assert starting.cancelled()
        assert waiting.cancelled()
        backend.open.set()
        async with pool.box(SPEC):
            assert backend.living() == 1
    assert backend.living() == 0


async def test_warm_boxes_are_taken_without_a_start_and_replaced(backend):
    async with SandboxPool(backend.start, warm=2) as pool:
        await (await pool.take(SPEC)).close()
        await until(lambda: backend.living() == 2 and not backend.starting)
        backend.open.clear()
        ready = [await pool.take(SAME_SPEC), await pool.take(SPEC)]
        assert [box in backend.boxes for box in ready] == [True, True]
        backend.open.set()
        await until(lambda: backend.living() == 4)
        for box in ready:
            await box.close()
    assert backend.living() == 0


async def test_a_warm_box_is_never_given_for_another_spec(backend):
    async with SandboxPool(backend.start, warm=1) as pool:
        await (await pool.take(SPEC)).close()
        await until(lambda: backend.living() == 1)
        async with pool.box(OTHER_SPEC) as box:
            assert (await box.exec("echo $A")).stdout == b"2\n"


async def test_a_warm_box_that_died_is_replaced_by_a_new_one(backend):
    async with SandboxPool(backend.start, warm=1) as pool:
        await (await pool.take(SPEC)).close()
        await until(lambda: backend.living() == 1)
        await backend.boxes[-1].close()
        async with pool.box(SPEC) as box:
            assert (await box.exec("true")).exit_code == 0


async def test_a_start_that_fails_in_advance_is_told_to_whoever_needs_a_box(backend):
    async with SandboxPool(backend.start, warm=1) as pool:
        backend.fail = True
        with pytest.raises(SandboxStartError):
            await pool.take(SPEC)
        await until(lambda: not backend.starting)
        backend.fail = False
        async with pool.box(SPEC) as box:
            assert not box.closed
    assert backend.living() == 0


async def test_leaving_the_pool_ends_starts_in_advance_and_refuses_new_ones(backend):
    pool = SandboxPool(backend.start, warm=3)
    box = await pool.take(SPEC)
    backend.open.clear()
    await until(lambda: backend.starting > 0 or backend.living() > 1)
    await pool.close()
    assert backend.starting == 0
    assert not box.closed
    with pytest.raises(SandboxClosed):
        await pool.take(SPEC)
    await box.close()
    assert backend.living() == 0


async def test_a_warm_box_that_gives_no_sign_of_life_is_closed_and_replaced(backend, monkeypatch):
    async with SandboxPool(backend.start, warm=1) as pool:
        await (await pool.take(SPEC)).close()
        await until(lambda: pool.ready(SPEC) == 1)
        mute = backend.boxes[-1]

        async def no_answer() -> None:
            raise SandboxTimeout("nothing")

        monkeypatch.setattr(mute, "check_alive", no_answer)
        async with pool.box(SPEC) as box:
            assert box is not mute
            assert mute.closed


async def test_who_waits_can_be_seen_with_the_longest_first(backend):
    backend.open.clear()
    async with SandboxPool(backend.start, starting=1) as pool, asyncio.TaskGroup() as group:
        takers = [group.create_task(pool.take(SPEC, who=f"rollout {number}")) for number in range(3)]
        await until(lambda: len(pool.waiting()) == 3)
        waiting = pool.waiting()
        assert [(one.who, one.spec) for one in waiting] == [(f"rollout {number}", SPEC) for number in range(3)]
        assert waiting[0].seconds >= waiting[2].seconds >= 0
        backend.open.set()
        for taker in takers:
            await (await taker).close()
        assert pool.waiting() == []


async def test_more_callers_than_the_queue_takes_are_refused(backend):
    backend.open.clear()
    async with SandboxPool(backend.start, queue=1) as pool:
        first = asyncio.create_task(pool.take(SPEC))
        await until(lambda: len(pool.waiting()) == 1)
        with pytest.raises(PoolBusy, match="queue=1"):
            await pool.take(SPEC)
        backend.open.set()
        await (await first).close()


async def test_whoever_waits_too_long_is_told_and_leaves_the_queue(backend):
    backend.open.clear()
    async with SandboxPool(backend.start, patience_s=0.05) as pool:
        with pytest.raises(PoolBusy, match=r"rollout 7 got no box within 0\.05 s: 1 are starting, 0 others wait"):
            await pool.take(SPEC, who="rollout 7")
        assert pool.waiting() == []
        backend.open.set()
    assert backend.living() == 0


async def test_a_start_that_times_out_is_told_as_that(backend):
    async def start(_spec: SandboxSpec) -> Sandbox:
        raise TimeoutError("of the backend")

    async with SandboxPool(start) as pool:
        with pytest.raises(TimeoutError, match="of the backend"):
            await pool.take(SPEC)


@pytest.mark.parametrize("warm", [0, 1])
async def test_a_box_that_comes_to_one_who_just_gave_up_is_not_lost(backend, warm):
    async with SandboxPool(backend.start, warm=warm) as pool:
        for _ in range(20):
            backend.open.clear()
            taker = asyncio.create_task(pool.take(SPEC))
            await until(lambda: backend.starting)
            backend.open.set()
            given = len(backend.boxes) + 1
            await until(lambda given=given: len(backend.boxes) >= given)
            taker.cancel()
            for result in await asyncio.gather(taker, return_exceptions=True):
                if isinstance(result, Sandbox):
                    await result.close()
    assert backend.living() == 0


@pytest.mark.parametrize("warm", [0, 1])
async def test_a_box_that_comes_to_one_who_was_cancelled_in_the_same_moment_is_not_lost(backend, warm):
    async def start(spec: SandboxSpec) -> Sandbox:
        box = await backend.start(spec)
        taker.cancel()  # it does not run before the box is handed out
        return box

    async with SandboxPool(start, warm=warm, starting=1) as pool:
        taker = asyncio.create_task(pool.take(SPEC))
        with pytest.raises(asyncio.CancelledError):
            await taker
        await until(lambda: len(backend.boxes) == 1 and backend.living() == warm)
    assert backend.living() == 0


async def test_a_taker_cancelled_at_any_await_leaves_no_box(backend):
    async with SandboxPool(backend.start, warm=1) as pool:
        step = 1
        while True:
            result = await asyncio.gather(
                asyncio.create_task(cancelled_at(step, pool.take(SPEC))), return_exceptions=True
            )
            step += 1
            if isinstance(result[0], Sandbox):
                await result[0].close()
                break
        assert step > 2
        await until(lambda: not backend.starting and backend.living() <= 1)
    assert backend.living() == 0


async def test_boxes_stand_ready_for_the_last_few_specs_only(backend):
    specs = [SandboxSpec(env={"A": str(number)}) for number in range(10)]
    async with SandboxPool(backend.start, warm=1) as pool:
        for spec in specs:
            await (await pool.take(spec)).close()
            await until(lambda spec=spec: pool.ready(spec) == 1)
        assert [pool.ready(spec) for spec in specs] == [0, 0, *[1] * 8]
        await until(lambda: backend.living() == 8)


async def test_a_spec_that_was_asked_for_once_is_not_remembered(backend):
    backend.fail = True
    async with SandboxPool(backend.start) as pool:
        for number in range(50):
            with pytest.raises(SandboxStartError):
                await pool.take(SandboxSpec(env={"A": str(number)}))
        assert len(pool._coming) <= 1
        assert len(pool._ready) <= 8


@pytest.mark.parametrize("sizes", [{"starting": 0}, {"warm": -1}, {"queue": 0}])
async def test_sizes_that_make_no_sense_are_refused(backend, sizes):
    with pytest.raises(ValueError, match="must be at least"):
        SandboxPool(backend.start, **sizes)
