"""Networks that run in the browser: pages of one file each, which need neither Python nor a network.

``pixels.html``       the trained image models write digits pixel by pixel, as a recurrent network and with a cache
``sums.html``         a real head token by token: softmax's row grows, linear attention's two sums do not
``frames/NN.html``    what the sliders of chapter NN show; ``frames/index.html`` lists them

`build.make` writes them; ``linattn-ref live`` calls it, and ``linattn-ref site`` takes them along.
"""

__all__: list[str] = []
