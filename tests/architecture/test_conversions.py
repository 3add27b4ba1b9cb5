"""The table of conversions in the docs is what the module does."""

from tests.architecture.render_conversions import PAGE, written


def test_the_docs_have_the_table_of_today() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run: python -m tests.architecture.render_conversions"
