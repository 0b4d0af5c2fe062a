"""How arrays cross to NumPy, PyTorch, JAX or CuPy, and how each of them is asked for gradients."""

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["DTYPES", "LIBRARIES", "Library", "library_of"]

DTYPES = "float64", "float32", "float16", "bfloat16"


class Library:
    """NumPy, which differentiates nothing."""

    name, differentiates = "numpy", False
    extra = "half"  # of this package, for what is not installed: here bfloat16
    views = False  # whether arrays are views with gaps along all axes, in larger ones
    dtypes: tuple[str, ...] = DTYPES

    @property
    def module(self) -> Any:
        """The library itself, which nothing else imports."""
        return importlib.import_module(self.name)

    def check(self, dtype: str, device: str) -> None:
        """Raise an error unless the library has this dtype and this device."""
        if dtype not in self.dtypes:
            raise ValueError(f"dtype: expected one of {', '.join(self.dtypes)}, got {dtype!r}")
        try:
            self.array(np.zeros(1), dtype, device)
        except ImportError:
            raise
        except Exception as error:  # each library has its own
            told = str(error).strip().partition("\n")[0]
            raise ValueError(f"device: {self.name} has no arrays on {device!r} here: {told}") from None

    def array(self, x: np.ndarray, dtype: str, device: str) -> Any:
        """A new array of the library, contiguous, in memory of its own."""
        if device != "cpu":
            raise ValueError("its arrays are on the CPU")
        numpy_dtype: Any = importlib.import_module("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
        return self.placed(np.array(x, dtype=numpy_dtype, order="C"), np.zeros)

    def placed(self, x: Any, zeros: Callable[..., Any]) -> Any:
        """The array, or a view with the same content."""
        if not self.views or not x.ndim:
            return x
        larger, at = zeros(tuple(2 * n for n in x.shape), dtype=x.dtype), (slice(None, None, 2),) * x.ndim
        larger[at] = x
        return larger[at]

    @contextlib.contextmanager
    def spread(self) -> Iterator[None]:
        """Within it, arrays are views."""
        self.views = True
        try:
            yield
        finally:
            self.views = False

    def numpy(self, x: Any) -> np.ndarray:
        """A copy in float64."""
        return np.array(x, dtype=np.float64)

    def dtype(self, x: Any) -> str:
        """The name of an array's dtype."""
        return str(x.dtype).rpartition(".")[2]

    def ask(self, call: Any, given: Any, state: Any, d: Any) -> tuple[Any, Any, Any]:
        """Output, last state and gradients under ``d``, those of ``state`` too unless it is None."""
        return *call(given), None


class CuPy(Library):
    """As NumPy, on a GPU."""

    name, extra = "cupy", "cuda12"
    dtypes = DTYPES[:3]

    def check(self, dtype: str, device: str) -> None:
        super().check(dtype, "cuda")

    def array(self, x: np.ndarray, dtype: str, device: str) -> Any:
        return self.placed(self.module.array(x, dtype=dtype, order="C"), self.module.zeros)

    def numpy(self, x: Any) -> np.ndarray:
        return np.array(self.module.asnumpy(x), dtype=np.float64)


class Torch(Library):
    """PyTorch, by autograd."""

    name, extra, differentiates = "torch", "peers", True

    def array(self, x: np.ndarray, dtype: str, device: str) -> Any:
        torch = self.module
        array = torch.from_dlpack(np.array(x, order="C")).to(getattr(torch, dtype)).to(device)
        return self.placed(array, functools.partial(torch.zeros, device=device))

    def numpy(self, x: Any) -> np.ndarray:
        return np.array(x.detach().cpu().double().numpy())

    def ask(self, call: Any, given: Any, state: Any, d: Any) -> tuple[Any, Any, Any]:
        torch = self.module
        leaves = dict(given)
        parts = () if state is None else state if isinstance(state, tuple) else (state,)
        if d is not None:
            for x in (*leaves.values(), *parts):
                x.requires_grad_()
        out, last = call(leaves)
        if d is None or not out.requires_grad:
            return out, last, None
        d_out, d_state = d
        ends, cotangents = [out], [d_out]
        if d_state is not None and last is not None:
            ends += last if isinstance(last, tuple) else (last,)
            cotangents += d_state if isinstance(d_state, tuple) else (d_state,)
        attached = [(x, d_x) for x, d_x in zip(ends, cotangents, strict=False) if x.requires_grad]
        ends, cotangents = map(list, zip(*attached, strict=True))
        found = torch.autograd.grad(ends, [*leaves.values(), *parts], cotangents, allow_unused=True)
        grads = dict(zip(leaves, found, strict=False))
        if parts:
            pairs = zip(parts, found[len(leaves) :], strict=True)
            of_state = tuple(torch.zeros_like(x) if g is None else g for x, g in pairs)
            grads["state"] = of_state if isinstance(state, tuple) else of_state[0]
        return out, last, grads


class Jax(Library):
    """JAX, by ``vjp``."""

    name, extra, differentiates = "jax", "peers", True

    def check(self, dtype: str, device: str) -> None:
        if dtype == "float64":
            self.module.config.update("jax_enable_x64", True)
        super().check(dtype, device)

    def array(self, x: np.ndarray, dtype: str, device: str) -> Any:
        jax = self.module
        wide = np.array(x, np.float64 if dtype == "float64" else np.float32, order="C")
        return jax.device_put(jax.numpy.from_dlpack(wide).astype(dtype), jax.devices(device)[0])

    def ask(self, call: Any, given: Any, state: Any, d: Any) -> tuple[Any, Any, Any]:
        jax = self.module
        if d is None:
            return *call(given), None

        def function(arrays: Any, first: Any) -> Any:
            return call(arrays) if state is None else call(arrays, first)

        (out, last), pull = jax.vjp(function, dict(given), state)
        d_out, d_state = d
        zero = jax.tree.map(lambda x: x * 0, last)
        grads, of_state = pull((d_out, zero if d_state is None or last is None else d_state))
        return out, last, grads if state is None else {**grads, "state": of_state}


LIBRARIES: dict[str, Library] = {library.name: library for library in (Library(), Torch(), Jax(), CuPy())}


def library_of(function: Any) -> Library:
    """Return the library of which a function's module has imported something; NumPy if there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)  # of a method: a class of PyTorch's Function, say
    homes = [getattr(x, "__module__", None) or type(x).__module__ for x in (function, owner) if x is not None]
    module = sys.modules.get(homes[-1])
    names = getattr(function, "__globals__", None) or (vars(module) if module else {})
    found = {str(getattr(x, of, None)).partition(".")[0] for x in names.values() for of in ("__name__", "__module__")}
    found |= {str(home).partition(".")[0] for home in homes}
    found |= {base.__module__.partition(".")[0] for base in getattr(owner, "__mro__", ())}
    return next((LIBRARIES[name] for name in ("torch", "jax", "cupy") if name in found), LIBRARIES["numpy"])
