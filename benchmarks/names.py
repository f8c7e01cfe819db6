"""The names that one value has on its way through the package, followed through the code without running it.

A name counts if the value is bound to it, a part or an item of the value, or what a function or class of the package
returns that receives the value. A call is followed if its function is defined in the module, imported, or a method of
`self`. The result of any other call, such as `list(value)` and `value.split()`, is not followed.
"""

from __future__ import annotations

import ast
from pathlib import Path

Key = tuple[str, ...]  # module, function; module, class; module, class, method
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Package:
    """The definitions and imports of a package, by module."""

    def __init__(self, source: Path) -> None:
        self.definitions: dict[Key, Function | ast.ClassDef] = {}
        self.imports: dict[str, dict[str, str]] = {}
        for path in sorted(source.rglob("*.py")):
            module = ".".join((source.name, *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__")
            tree = ast.parse(path.read_text())
            self.imports[module] = _imports(tree)
            self._add((module,), tree.body)

    def _add(self, key: Key, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, Function | ast.ClassDef):
                self.definitions[*key, node.name] = node
            if isinstance(node, ast.ClassDef):
                self._add((*key, node.name), node.body)

    def called(self, key: Key, function: ast.expr) -> Key | None:
        """Return what a call inside a function or method names, or None if that is not of the package."""
        if isinstance(function, ast.Name):
            return self.find(key[0], function.id)
        if not isinstance(function, ast.Attribute):
            return None
        if isinstance(function.value, ast.Name) and function.value.id == "self":
            method = (*key[:2], function.attr)
            return method if len(key) == 3 and method in self.definitions else None
        module = self._module(key[0], function.value)
        return self.find(module, function.attr) if module in self.imports else None

    def find(self, module: str, name: str) -> Key | None:
        """Return the definition that a name of a module refers to, also if other modules pass it on."""
        if (module, name) in self.definitions:
            return module, name
        home, _, imported = self.imports[module].get(name, "").rpartition(".")
        return self.find(home, imported) if home in self.imports and (home, imported) != (module, name) else None

    def _module(self, module: str, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._module(module, node.value)}.{node.attr}"
        return self.imports[module].get(node.id, "") if isinstance(node, ast.Name) else ""


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return the full path of each imported name, wherever in the module it is imported."""
    paths = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            paths |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return paths


class Walk:
    """The names to which a value is bound.

    Attributes:
        bound: name of a variable or parameter, after the function's key; of an attribute, after the class's key.
    """

    def __init__(self, package: Package, start: Key) -> None:
        self.package, self.bound = package, {(start, package.definitions[start].args.args[0].arg)}
        size = 0
        while size < len(self.bound):
            size = len(self.bound)
            for key in {key for key, _ in self.bound}:
                definition = package.definitions[key]
                if isinstance(definition, Function):
                    self._visit(key, definition)

    def _visit(self, key: Key, function: Function) -> None:
        """Add the names that a function binds to the value, also those of parameters that it passes the value to."""
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=targets, value=value) if self._holds(key, value):
                    for target in targets:
                        self._bind(key, target)
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value)
                    | ast.AugAssign(target=target, value=value)
                    | ast.NamedExpr(target=target, value=value)
                    | ast.For(target=target, iter=value)
                    | ast.comprehension(target=target, iter=value)
                    | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
                ) if self._holds(key, value):
                    self._bind(key, target)
                case ast.Call():
                    self._pass(key, node)

    def _bind(self, key: Key, target: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                self.bound.add((key, name))
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if len(key) == 3:
                self.bound.add((key[:2], name))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for part in targets:
                    self._bind(key, part)
            case ast.Starred(value=value) | ast.Subscript(value=value):
                self._bind(key, value)

    def _pass(self, key: Key, call: ast.Call) -> None:
        """Add the parameters of a called function, or the fields of a class, that receive the value."""
        callee = self.package.called(key, call.func)
        if callee is None:
            return
        if (*callee, "__init__") in self.package.definitions:
            callee = (*callee, "__init__")
        definition = self.package.definitions[callee]
        if isinstance(definition, ast.ClassDef):
            fields = [node.target for node in definition.body if isinstance(node, ast.AnnAssign)]
            positional = keywords = [field.id for field in fields if isinstance(field, ast.Name)]
        else:
            positional = [argument.arg for argument in definition.args.args][len(callee) - 2 :]
            keywords = [*positional, *(argument.arg for argument in definition.args.kwonlyargs)]
        for index, argument in enumerate(call.args):
            if self._holds(key, argument):
                rest = positional[index:] if isinstance(argument, ast.Starred) else positional[index : index + 1]
                self.bound |= {(callee, name) for name in rest}
        named = {keyword.arg for keyword in call.keywords if self._holds(key, keyword.value)}
        self.bound |= {(callee, name) for name in named.intersection(keywords)}

    def _holds(self, key: Key, node: ast.expr | None) -> bool:
        """Return True if an expression is the value, contains it, or is made from it."""
        match node:
            case ast.Name(id=name):
                return (key, name) in self.bound
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return (key[:2], name) in self.bound
            case ast.Call(func=function, args=arguments, keywords=keywords):
                values = [*arguments, *(keyword.value for keyword in keywords)]
                return self.package.called(key, function) is not None and any(self._holds(key, item) for item in values)
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
                return self._holds(key, value)
            case ast.NamedExpr(value=value) | ast.ListComp(elt=value) | ast.GeneratorExp(elt=value):
                return self._holds(key, value)
            case ast.SetComp(elt=value):
                return self._holds(key, value)
            case ast.DictComp(key=left, value=right) | ast.BinOp(left=left, right=right):
                return self._holds(key, left) or self._holds(key, right)
            case ast.IfExp(body=left, orelse=right):
                return self._holds(key, left) or self._holds(key, right)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.BoolOp(values=items):
                return any(self._holds(key, item) for item in items)
            case ast.Dict(keys=names, values=items):
                return any(self._holds(key, item) for item in (*names, *items))
        return False


def names_on_the_way(source: Path, module: str, function: str) -> set[str]:
    """Return all names of a function's first argument, in that function and in all that it is passed to."""
    return {name for _, name in Walk(Package(source), (module, function)).bound}
