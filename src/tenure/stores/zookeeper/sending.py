"""Messages to other sessions: a sender appends to the data of the other session's channel."""

from tenure.stores.zookeeper.channel import path_of, read_box, write_box
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.nodes import ZooKeeperNodes


async def send_message(nodes: ZooKeeperNodes, session: str, message: str, until: float) -> None:
    """Append a message to the channel of a session."""
    path = path_of(nodes.root, session)
    while (found := await nodes.get(path, until)) is not None:
        data, stat = found
        count, messages = read_box(data)
        written = await nodes.set(path, write_box(count, [*messages, message]), stat.version, until)
        if written is not Code.BAD_VERSION:
            return
        nodes.in_time(until)
