"""Takes away a cluster's nodes, chosen by what they lead, until `Stage.heal`; moves leaders."""

from collections.abc import Callable, Sequence
from contextlib import closing

from kafka import KafkaAdminClient

from chaos.schedule import Fault, Kind
from chaos.stage import NotInflictedError, Stage
from spark_eos.testing import KafkaNode

_Partition = tuple[str, int]
_Find = Callable[[Stage, Fault], _Partition]
_Nodes = Callable[[Stage, Fault], Sequence[KafkaNode]]
_Deed = Callable[[Stage, Fault], None]


def _target(stage: Stage, fault: Fault) -> _Partition:
    """One of the target's partitions."""
    topic = stage.targets[int(fault.choice * 10) % len(stage.targets)]
    return topic, int(fault.choice * 100) % stage.load.partitions


def _transaction(stage: Stage, fault: Fault) -> _Partition:
    """The coordinator of a transactional id of the query: the one that has reached a moment."""
    chosen = fault.transactional_id
    if chosen is None:
        with closing(KafkaAdminClient(bootstrap_servers=stage.servers.split(","))) as client:
            found = sorted(
                each.transactional_id
                for of_node in client.list_transactions().values()
                for each in of_node
                if each.transactional_id.startswith(f"spark-eos/{stage.name}/")
            )
        if not found:
            raise NotInflictedError("there has been no transaction yet")
        chosen = found[int(fault.choice * len(found))]
    return stage.broker.transaction_partition(chosen)


def _group(stage: Stage, _fault: Fault) -> _Partition:
    return stage.broker.group_partition(stage.name)


def _leader(find: _Find) -> _Nodes:
    return lambda stage, fault: [stage.broker.leader(*find(stage, fault))]


def _controller(stage: Stage, _fault: Fault) -> Sequence[KafkaNode]:
    return [stage.broker.controller()]


def _two(stage: Stage, fault: Fault) -> Sequence[KafkaNode]:
    """The leader of a target's partition, and another node."""
    first = stage.broker.leader(*_target(stage, fault))
    others = [node for node in stage.broker.nodes if node is not first]
    return first, others[int(fault.choice * len(others))]


def _away(take: Callable[[KafkaNode], None], find: _Nodes) -> _Deed:
    def strike(stage: Stage, fault: Fault) -> None:
        for node in find(stage, fault):
            take(node)

    return strike


def _part(find: _Nodes) -> _Deed:
    """Cuts a node off from the other nodes, but not from clients, which it continues to answer."""
    return lambda stage, fault: stage.broker.part(*find(stage, fault))


def _move(find: _Find) -> _Deed:
    """Moves leadership to another node by reassignment and preferred election."""

    def strike(stage: Stage, fault: Fault) -> None:
        topic, partition = find(stage, fault)
        leads = stage.broker.leader(topic, partition)
        others = [node for node in stage.broker.nodes if node is not leads]
        stage.broker.move_leader(topic, partition, others[int(fault.choice * len(others))])

    return strike


def _unreachable(stage: Stage, fault: Fault) -> None:
    """Cuts a node off from clients, but not from the other nodes: it continues to lead."""
    finds = (_target, _transaction, _group)
    node = stage.broker.leader(*finds[int(fault.choice * len(finds))](stage, fault))
    stage.proxy.cut_off = frozenset({node.ports.client})


DEEDS: dict[Kind, _Deed] = {
    Kind.LEADER_KILL: _away(KafkaNode.kill, _leader(_target)),
    Kind.LEADER_STOP: _away(KafkaNode.stop, _leader(_target)),
    Kind.LEADER_FREEZE: _away(KafkaNode.pause, _leader(_target)),
    Kind.LEADER_PARTED: _part(_leader(_target)),
    Kind.LEADER_MOVE: _move(_target),
    Kind.COORDINATOR_KILL: _away(KafkaNode.kill, _leader(_transaction)),
    Kind.COORDINATOR_STOP: _away(KafkaNode.stop, _leader(_transaction)),
    Kind.COORDINATOR_FREEZE: _away(KafkaNode.pause, _leader(_transaction)),
    Kind.COORDINATOR_PARTED: _part(_leader(_transaction)),
    Kind.COORDINATOR_MOVE: _move(_transaction),
    Kind.GROUP_COORDINATOR_KILL: _away(KafkaNode.kill, _leader(_group)),
    Kind.GROUP_COORDINATOR_STOP: _away(KafkaNode.stop, _leader(_group)),
    Kind.GROUP_COORDINATOR_FREEZE: _away(KafkaNode.pause, _leader(_group)),
    Kind.GROUP_COORDINATOR_PARTED: _part(_leader(_group)),
    Kind.GROUP_COORDINATOR_MOVE: _move(_group),
    Kind.CONTROLLER_KILL: _away(KafkaNode.kill, _controller),
    Kind.CONTROLLER_STOP: _away(KafkaNode.stop, _controller),
    Kind.CONTROLLER_FREEZE: _away(KafkaNode.pause, _controller),
    Kind.CONTROLLER_PARTED: _part(_controller),
    Kind.TWO_NODES_KILL: _away(KafkaNode.kill, _two),
    Kind.TWO_NODES_FREEZE: _away(KafkaNode.pause, _two),
    Kind.NODE_UNREACHABLE: _unreachable,
}
