"""The rule for a table of rows, as in an object store or in DynamoDB: it must honour the conditions of writes."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact


@dataclass(slots=True)
class TableFacts(Facts):
    """What is known of a table."""

    ignored: str | None = fact("whether it honours conditions")
    """Which condition it takes and ignores; "": none."""


def conditions(facts: TableFacts) -> Finding | None:
    """Find a table that writes what it must refuse to write."""
    if not facts.ignored:
        return None
    return Finding(
        "table-conditions",
        Severity.ERROR,
        facts.place,
        f"It takes the condition {facts.ignored}, and ignores it.",
        "Two clients would get one lock. Tenure refuses such a store.",
        "a server that knows conditional writes (If-Match and If-None-Match; in DynamoDB ConditionExpression), and no "
        "proxy that removes them",
    )


RULES: tuple[Rule[TableFacts], ...] = (conditions,)
