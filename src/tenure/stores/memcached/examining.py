"""What servers tell of their settings when they are examined."""

from tenure.contracts.findings import Report, clock_ahead
from tenure.contracts.runtime import Runtime
from tenure.doctor.memcached import RULES, MemcachedFacts
from tenure.errors import StoreError, StoreUnavailable
from tenure.escaping import quoted
from tenure.stores.memcached.errors import WithoutCas
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.protocol import STATS, MemcachedRequest
from tenure.transport.link import ServerAddress


async def report_on(runtime: Runtime, link: MemcachedLink, addresses: list[ServerAddress], timeout: float) -> Report:
    """Look at all servers. Raises StoreError if none answers."""
    report, failed = Report(""), list[StoreError]()
    for address in addresses:
        try:
            facts = await _look(runtime, link, address, timeout)
        except StoreUnavailable as error:
            failed.append(error)
            facts = MemcachedFacts(str(address), silent=quoted(error))
        report.add(facts, RULES)
    if len(failed) == len(addresses):
        raise failed[0]
    return report


async def _look(runtime: Runtime, link: MemcachedLink, address: ServerAddress, timeout: float) -> MemcachedFacts:
    try:
        server = await link.server(address, runtime.now() + timeout)
    except WithoutCas as error:
        error.facts.unseen["ahead"] = "the server is refused anyway"
        return error.facts
    facts = server.facts or MemcachedFacts(str(address))
    before = runtime.wall()
    answer = await link.exchange(address, MemcachedRequest(STATS, 0), runtime.now() + timeout)
    after = runtime.wall()
    for reply in answer.replies:
        key, _, value = reply.rest.partition(b" ")
        if key == b"time" and value.isdigit():
            facts.ahead = clock_ahead(float(value), before / 1e6, after / 1e6, 1.0)
    return facts
