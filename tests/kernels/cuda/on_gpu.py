"""A drawn call with its arrays on a GPU, or where stand-ins say that it is."""

from dataclasses import replace

from case import normal_like

from linattn_ref.nested import map_arrays
from linattn_ref.op.libraries import is_on_gpu


def on_gpu(call, kernels, put):
    """The same call with arrays that are there; integers, which are indices, stay on the host."""
    arrays = {name: there(x, put) for name, x in call.arrays.items()}
    options = {name: there(x, put) for name, x in call.options.items()}
    return replace(call, arrays=arrays, options={**options, "kernels": kernels})


def there(x, put):
    return map_arrays(lambda x: x if x.dtype.kind in "iu" else put(x), x)


def on_host(x, get):
    """The arrays in a result, which all have to be on the GPU, as NumPy's."""
    if isinstance(x, (tuple, list)):
        parts = [on_host(part, get) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if is_on_gpu(x):
        return get(x)
    assert x is None or isinstance(x, (int, float, str)) or x.dtype.kind == "i"  # a count of rows or steps
    return x


def both_passes(call, kernels, put, get):
    """The results of a call there, by name, and those of the same call on the host."""
    expected = call.run()
    out, saved = on_gpu(call, kernels, put).forward()
    gradients = call.case.backward(put(normal_like(expected.out)), saved)
    result = expected._replace(out=on_host(out, get), gradients=on_host(gradients, get))
    return result.named(), expected.named()


def prefill_and_steps(call, kernels, put, first):
    """Some tokens at once, the others one by one, from a state made there: their outputs, and the state after them."""
    case, sizes, n = call.case, call.sizes, call.sizes.n
    gpu = on_gpu(call, kernels, put)
    constants = [x for name, x in gpu.arrays.items() if name not in call.axes]
    options = gpu.change(capacity=n, dtype=call.arrays["q"].dtype, like=gpu.arrays["q"])
    init_state = case.module.init_state
    state = init_state(sizes.leading, sizes.d, sizes.m, *constants, **options.accepted_by(init_state))
    out, saved = case.forward(*there(tuple(call.positions(slice(first)).values()), put), **gpu.options, state=state)
    outs, state = [out], saved.state
    for t in range(first, n):
        q_t, k_t, v_t, *others = there(tuple(call.positions(t).values()), put)
        out_t, state = case.module.step(q_t, k_t, v_t, state, *others, **gpu.accepted_by(case.module.step))
        outs.append(out_t)
    return outs, state
