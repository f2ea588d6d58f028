"""Slots of an engine: bounded, first come first served, nothing lost to cancellation."""

import asyncio

import pytest

from atroposlib.envs.server_handling.slots import RequestSlots


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(slots: RequestSlots, leave: asyncio.Event, entered: list[int], number: int) -> None:
    async with slots:
        entered.append(number)
        await leave.wait()


async def test_no_more_run_than_there_are_slots_and_the_rest_come_in_order():
    slots, leave, entered = RequestSlots(2), asyncio.Event(), []
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(hold(slots, leave, entered, number))
        await settle()
        assert entered == [0, 1]
        assert slots.load == 2.5
        leave.set()
    assert entered == [0, 1, 2, 3, 4]
    assert slots.in_use == 0


async def test_a_waiting_request_that_is_cancelled_leaves_its_turn_to_the_next():
    slots, leave, entered = RequestSlots(1), asyncio.Event(), []
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(slots, leave, entered, 0))
        await settle()
        waiting = group.create_task(hold(slots, leave, entered, 1))
        group.create_task(hold(slots, leave, entered, 2))
        await settle()
        waiting.cancel()
        await settle()
        leave.set()
    assert entered == [0, 2]
    assert slots.in_use == 0


async def test_a_request_cancelled_in_the_moment_it_gets_its_turn_gives_the_slot_back():
    slots, leave, entered = RequestSlots(1), asyncio.Event(), []
    async with slots:
        waiting = asyncio.create_task(hold(slots, leave, entered, 1))
        await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (slots.in_use, entered) == (0, [])


async def test_a_larger_weight_lets_those_in_that_wait():
    slots, leave, entered = RequestSlots(4), asyncio.Event(), []
    slots.set_weight(0.25)
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(hold(slots, leave, entered, number))
        await settle()
        assert entered == [0]
        slots.set_weight(1.0)
        await settle()
        assert entered == [0, 1, 2, 3]
        leave.set()


def test_a_weight_of_nothing_still_leaves_one_slot():
    slots = RequestSlots(8)
    slots.set_weight(0.0)
    assert slots.limit == 1
