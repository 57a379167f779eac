"""The runtime of the simulation."""

from simulation.runtime import Process, SimRuntime, World


def test_a_task_that_crashes_its_own_process_ends_there() -> None:
    """Neither it nor another task of the process runs on, and the process of others does."""
    world, ran = World(1), list[str]()
    crashing, other = Process(world, "c1"), Process(world, "c2")

    async def crash() -> None:
        crashing.crash()
        crashing.end_here()
        ran.append("what follows the crash")

    async def wait(process: Process) -> None:
        await SimRuntime(process).sleep(0.1)
        ran.append(process.name)

    crashing.start(wait(crashing), "waits")
    crashing.start(crash(), "crashes")
    other.start(wait(other), "waits")
    world.run(1.0)
    assert ran == ["c2"]
    assert not world.errors
