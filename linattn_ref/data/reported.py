"""Numbers that papers print, with the table each stands in. Nothing here was measured by this package.

The chapters compare them with what is measured here. They come from other machines and, for whole networks, from a
training that is not repeated here: what can be compared is ratios and orders, not seconds. All of them were compared,
the first paper's with a transcription of its tables, the second's with its text.

Katharopoulos et al. (2020), "Transformers are RNNs: fast autoregressive transformers with linear attention". Networks
that write an image pixel by pixel (MNIST: 784 pixels, 8 layers of 8 heads of 32, 250 epochs; CIFAR-10: 3072 numbers, 16
such layers, a week), and speech recognition on Wall Street Journal data.
    `MNIST`, `CIFAR_10`        tables 1 and 2; the row ``stateful-softmax`` is from table 4
    `MNIST_SECONDS`, `CIFAR_10_SECONDS`   table 5: one image, batch size 1
    `SPEECH`                   table 3
    `LONGEST`                  section 4.1.2, on an NVIDIA GTX 1080 Ti of 11 GB

Wang et al. (2020), "Linformer: self-attention with linear complexity".
    `LINFORMER_TIME_SAVED`, `LINFORMER_MEMORY_SAVED`   table 3: a whole network with layerwise sharing against a
                               standard Transformer, forward pass on one V100 of 16 GB; memory by the largest batch
    `LINFORMER_ACCURACY`       table 2: after fine-tuning
    Its pretraining perplexities are curves (figure 3); the paper prints no numbers of them.
"""

from typing import NamedTuple

__all__ = ["CIFAR_10", "CIFAR_10_SECONDS", "LINFORMER_ACCURACY", "LINFORMER_MEMORY_SAVED", "LINFORMER_REDUCED"]
__all__ += ["LINFORMER_TIME_SAVED", "LONGEST", "MNIST", "MNIST_SECONDS", "SPEECH", "Generation", "Seconds", "Speech"]


class Generation(NamedTuple):
    """A network that generates images."""

    bits_per_dim: float  # of the test set: lower is better
    images_per_second: float
    times_faster: float  # than softmax, as printed


class Seconds(NamedTuple):
    """Time to generate a single image."""

    cpu: float
    gpu: float


class Speech(NamedTuple):
    """A network that recognises speech."""

    phoneme_error_rate: float  # per cent, validation
    seconds_per_epoch: float


MNIST = {
    "softmax": Generation(0.621, 0.45, 1),
    "stateful-softmax": Generation(0.621, 7.56, 16.8),
    "lsh-1": Generation(0.745, 0.68, 1.5),
    "lsh-4": Generation(0.676, 0.27, 0.6),
    "linear": Generation(0.644, 142.8, 317),
}
CIFAR_10 = {
    "softmax": Generation(3.47, 0.004, 1),
    "stateful-softmax": Generation(3.47, 0.32, 80),
    "lsh-1": Generation(3.39, 0.015, 3.75),
    "lsh-4": Generation(3.51, 0.005, 1.25),
    "linear": Generation(3.40, 17.85, 4462),
}
MNIST_SECONDS = {
    "softmax": Seconds(72.6, 10.2),
    "stateful-softmax": Seconds(7.4, 10.4),
    "lsh-1": Seconds(46.0, 19.2),
    "lsh-4": Seconds(112.0, 55.8),
    "linear": Seconds(5.5, 7.3),
}
CIFAR_10_SECONDS = {
    "softmax": Seconds(8651.4, 300.1),
    "stateful-softmax": Seconds(71.9, 70.4),
    "lsh-1": Seconds(2318.9, 221.6),
    "lsh-4": Seconds(5263.7, 683.9),
    "linear": Seconds(45.1, 61.3),
}
SPEECH = {
    "bi-lstm": Speech(10.94, 1047),
    "softmax": Speech(5.12, 2711),
    "lsh-4": Speech(9.33, 2250),
    "linear": Speech(8.08, 824),
}
LONGEST = {"softmax": 4096, "lsh-4": 16384, "lsh-8": 16384}  # tokens that fit into 11 GB, forward and backward

LINFORMER_REDUCED = (128, 256, 512, 1024, 2048)  # k, the columns of the two tables below; rows by length n
LINFORMER_TIME_SAVED = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32768: (13, 12, 11, 8.8, 5.0),
    65536: (20, 18, 16, 14, 7.9),
}
LINFORMER_MEMORY_SAVED = {
    512: (1.7, 1.5),
    1024: (3.0, 2.9, 1.8),
    2048: (6.1, 5.6, 3.6, 2.0),
    4096: (14, 13, 8.3, 4.3, 2.3),
    8192: (28, 26, 17, 8.5, 4.5),
    16384: (56, 48, 32, 16, 8),
    32768: (56, 48, 36, 18, 16),
    65536: (60, 52, 40, 20, 18),
}
# (n, network): SST-2, IMDB, QNLI, QQP, and their average as printed; per cent
LINFORMER_ACCURACY = {
    (512, "RoBERTa-base"): (93.1, 94.1, 90.9, 90.9, 92.25),
    (512, "Linformer, k = 128"): (92.4, 94.0, 90.4, 90.2, 91.75),
    (512, "Linformer, k = 128, key-value sharing"): (93.4, 93.4, 90.3, 90.3, 91.85),
    (512, "Linformer, k = 128, layerwise sharing"): (93.2, 93.8, 90.1, 90.2, 91.83),
    (512, "Linformer, k = 256"): (93.2, 94.0, 90.6, 90.5, 92.08),
    (512, "Linformer, k = 256, key-value sharing"): (93.3, 93.6, 90.6, 90.6, 92.03),
    (512, "Linformer, k = 256, layerwise sharing"): (93.1, 94.1, 91.2, 90.8, 92.30),
    (512, "BERT-base"): (92.7, 93.5, 91.8, 89.6, 91.90),
    (512, "Distilled BERT"): (91.3, 92.8, 89.2, 88.5, 90.45),
    (1024, "Linformer, k = 256"): (93.0, 93.8, 90.4, 90.4, 91.90),
    (1024, "Linformer, k = 256, key-value sharing"): (93.0, 93.6, 90.3, 90.4, 91.83),
    (1024, "Linformer, k = 256, layerwise sharing"): (93.2, 94.2, 90.8, 90.5, 92.18),
}
