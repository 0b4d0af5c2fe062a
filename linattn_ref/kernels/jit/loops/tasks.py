"""Tasks on threads: a kernel is a function of one task, and the loop over tasks knows only its address.

What is in a ``prange``, with all that it calls, Numba compiles four times over: for the loop, for two ways into it, and
for the function around it. That was half of the time before a first result. So a kernel is compiled by itself, once.
The loop calls it by a symbol, and takes a fraction of a second. It gives the arguments as one address too, because a
``prange`` takes no tuples of tuples.
"""

from llvmlite import binding, ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic, register_model

from linattn_ref.kernels.jit.loops.simd.vector import LlvmModel
from linattn_ref.kernels.jit.loops.views import without_owner

__all__ = ["loop_of", "publish"]


def publish(task, kinds):
    """Compile the dispatcher ``task`` for arguments of these types, unless it is, and tell LLVM where it is."""
    task.compile(kinds)
    compiled = task.overloads[kinds]
    binding.add_symbol(_symbol(task, kinds), compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _symbol(task, kinds):
    return f"{task.py_func.__module__}.{task.py_func.__name__}{kinds}"


class Address(types.Type):
    """Where a tuple lies."""

    llvm = ir.IntType(64)

    def __init__(self, values):
        self.values = values
        super().__init__(f"Address({values})")


register_model(Address)(LlvmModel)


@intrinsic
def _address_of(typing_context, values):
    """Of a copy, for as long as the function runs in which this stands; no task counts an array's holders."""

    def generate(context, builder, signature, arguments):
        copy = cgutils.alloca_once_value(builder, without_owner(context, builder, values, arguments[0]))
        return builder.ptrtoint(copy, Address.llvm)

    return Address(values)(values), generate


def loop_of(task):
    """``loop(tasks, *arguments)``: ``task(i, *arguments)`` for each task, if its address was made known."""

    @intrinsic
    def call(typing_context, i, address):
        kinds = (types.intp, *address.values)

        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[1], context.get_value_type(address.values).as_pointer())
            values = arguments[0], *cgutils.unpack_tuple(builder, builder.load(pointer))
            function_type = context.call_conv.get_function_type(types.none, kinds)
            function = cgutils.get_or_insert_function(builder.module, function_type, _symbol(task, kinds))
            status, _ = context.call_conv.call_function(builder, function, types.none, kinds, values)
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.none(types.intp, address), generate

    def loop(tasks, *arguments):
        address = _address_of(arguments)
        for i in prange(tasks):
            call(i, address)

    code = task.py_func.__code__  # so that a profiler shows the kernel's name and place
    place = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno, "co_name": code.co_name}
    loop.__code__ = loop.__code__.replace(**place)
    return loop
