"""Lets masks be written with `and`, `or`, `not` and chained comparisons.

Python asks the first operand of `a and b` for its truth, which a condition on index tensors does
not have.  So in a kernel's source these expressions become calls that join conditions and behave as
Python's own for everything else.  Tests of `if`, `while` and the like keep their meaning.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from nkisim.frontend.predicate import Predicate

HELPER: Final = "__nkisim_logic__"
"""Name under which a rewritten module finds the functions."""


class Logic:
    """`and`, `or`, `not` and chained comparisons over conditions and ordinary values."""

    @staticmethod
    def all(*operands: Callable[[], Any]) -> Any:
        """`a and b and …`."""
        result: Any = True
        for i, operand in enumerate(operands):
            value = operand()
            if isinstance(result, Predicate) or (i and isinstance(value, Predicate)):
                result = result & value
            else:
                result = value
            if not isinstance(result, Predicate) and not result:
                return result
        return result

    @staticmethod
    def any(*operands: Callable[[], Any]) -> Any:
        """`a or b or …`."""
        result: Any = False
        for i, operand in enumerate(operands):
            value = operand()
            if isinstance(result, Predicate) or (i and isinstance(value, Predicate)):
                result = result | value
            else:
                result = value
            if not isinstance(result, Predicate) and result:
                return result
        return result

    @staticmethod
    def invert(value: Any) -> Any:
        """`not a`."""
        return ~value if isinstance(value, Predicate) else not value


class _Rewriter(ast.NodeTransformer):
    """Rewrites logic in value positions inside functions."""

    def __init__(self) -> None:
        self.depth = 0
        self.changes = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        node.body = [self.visit(statement) for statement in node.body]
        self.depth -= 1
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        depth, self.depth = self.depth, 0
        self.generic_visit(node)
        self.depth = depth
        return node

    def _keep_test(self, node: ast.AST) -> ast.AST:
        """Visit all but a test's own logic."""
        test = node.test  # type: ignore[attr-defined]
        self.generic_visit(node)
        node.test = test  # type: ignore[attr-defined]
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _keep_test

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if not self._may_be_condition(node):
            return node
        name = "all" if isinstance(node.op, ast.And) else "any"
        return self._call(node, name, [_thunk(value) for value in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not) or not self._may_be_condition(node):
            return node
        return self._call(node, "invert", [node.operand])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        middle = node.comparators[:-1]
        simple = all(isinstance(item, (ast.Name, ast.Constant, ast.BinOp)) for item in middle)
        if len(node.ops) < 2 or not simple or not self._may_be_condition(node):
            return node
        sides = [node.left, *node.comparators]
        parts: list[ast.expr] = [
            _thunk(ast.copy_location(ast.Compare(left=a, ops=[op], comparators=[b]), node))
            for a, op, b in zip(sides[:-1], node.ops, sides[1:], strict=True)
        ]
        return self._call(node, "all", parts)

    def _may_be_condition(self, node: ast.AST) -> bool:
        """Whether an expression compares something and can be moved into a function."""
        inside = list(ast.walk(node))
        moves = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
        if not self.depth or any(isinstance(item, moves) for item in inside):
            return False
        return any(isinstance(item, (ast.Compare, ast.Name)) for item in inside)

    def _call(self, node: ast.AST, name: str, args: list[ast.expr]) -> ast.AST:
        self.changes += 1
        function = ast.Attribute(
            value=ast.Name(id=HELPER, ctx=ast.Load()), attr=name, ctx=ast.Load()
        )
        call = ast.Call(func=function, args=args, keywords=[])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _thunk(value: ast.expr) -> ast.expr:
    """Return `lambda: value`, so that operands are evaluated as late as in the original."""
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.copy_location(ast.Lambda(args=arguments, body=value), value)


def rewrite(text: str, file: str) -> ast.Module | str:
    """Return a module's source, or its tree if logic in it was rewritten.

    Only modules that use the old generation's index tensors are touched.
    """
    if "arange" not in text and "mgrid" not in text:
        return text
    tree = ast.parse(text, file)
    rewriter = _Rewriter()
    tree = rewriter.visit(tree)
    return tree if rewriter.changes else text
