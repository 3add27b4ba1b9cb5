"""Tables that a change logged as a statement may have written."""

import pytest

from agent.sources.mysql.ddl.written import written

KNOWN = (("shop", "item"), ("shop", "orders"), ("stock", "item"))


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("INSERT INTO item (id, name) VALUES (1, concat('orders', hex(3)))", ["shop.item"]),
        ("UPDATE stock.item SET n = (SELECT max(n) FROM orders)", ["shop.orders", "stock.item"]),
        ("REPLACE INTO monitor.sums SELECT count(*), 'item' FROM monitor.jobs AS j (a)", []),
        ("INSERT INTO item VALUES (next_number())", ["shop.item", "shop.orders", "stock.item"]),
        ("DELETE FROM item WHERE id = `other`.`f`(1)", ["shop.item", "shop.orders", "stock.item"]),
        ("INSERT INTO all_items VALUES (1)", ["shop.item", "shop.orders", "stock.item"]),
        ("SELECT `other`.`f`(1)", ["shop.item", "shop.orders", "stock.item"]),
        ("/* why */ do f()", ["shop.item", "shop.orders", "stock.item"]),
    ],
)
def test_which_tables_a_statement_may_change(statement: str, tables: list[str]) -> None:
    found = written(
        statement,
        "monitor" if "monitor" in statement else "shop",
        KNOWN,
        reaches=lambda names: ("shop", "all_items") in names,
        fold=lambda name: name,
    )
    assert [".".join(name) for name in found] == tables
