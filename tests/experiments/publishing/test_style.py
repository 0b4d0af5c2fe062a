import contextlib
import itertools
import re
from importlib import resources

import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest

from linattn_ref.experiments.publishing import style

# Machado, Oliveira and Fernandes (2009): linear RGB as seen without one of the three kinds of cone.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear_rgb(colour):
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(linear):
    """CIELAB (D65): a distance of about 2 is just seen."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ np.clip(linear, 0, 1) / to_xyz.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(colours, deficiency):
    seen = [lab(np.array(DEFICIENCIES[deficiency]) @ linear_rgb(colour)) for colour in colours]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("name", style.STYLES)
def test_colours_differ_for_every_kind_of_colour_vision(name, deficiency):
    with style.use(name):
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    # Five times what is just seen.
    assert least_distance(cycle, deficiency) > 10


def test_the_measure_of_colour_distance_tells_a_palette_that_is_not_safe():
    matplotlibs = [f"C{i}" for i in range(7)]
    assert least_distance(matplotlibs, "none") > 10
    assert least_distance(matplotlibs, "protanopia") < 10
    assert least_distance(matplotlibs, "deuteranopia") < 10


def test_named_colours_are_the_cycle():
    named = {style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BLACK}
    with style.use("paper"):
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    assert {matplotlib.colors.to_hex(colour).upper() for colour in cycle} == {colour.upper() for colour in named}


def test_sequence_goes_from_dark_to_light_and_stays_readable_on_white():
    lightness = [lab(linear_rgb(colour))[0] for colour in style.sequence(12)]
    assert all(np.diff(lightness) > 2)
    assert lightness[-1] < 90  # white has 100
    assert len(style.sequence(1)) == 1


def test_use_gives_everything_back_even_after_an_error():
    before = dict(matplotlib.rcParams)
    with contextlib.suppress(RuntimeError), style.use("projector"):
        assert dict(matplotlib.rcParams) != before
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before


def test_a_users_own_settings_change_nothing():
    with style.use("paper"):
        expected = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linestyle": ":", "axes.facecolor": "red"}), style.use("paper"):
        assert dict(matplotlib.rcParams) == expected


def test_unknown_style_names_the_choices():
    with pytest.raises(ValueError, match="style must be one of paper, projector, got 'poster'"), style.use("poster"):
        pass


def test_projector_has_larger_letters_and_thicker_lines_for_its_page():
    sizes = {}
    for name in style.STYLES:
        with style.use(name):
            width = matplotlib.rcParams["figure.figsize"][0]
            keys = ("font.size", "xtick.labelsize", "legend.fontsize", "lines.linewidth")
            sizes[name] = np.array([matplotlib.rcParams[key] for key in keys]) / width
    assert (sizes["projector"] > 1.2 * sizes["paper"]).all()


@pytest.mark.parametrize("name", style.STYLES)
def test_figure_is_as_wide_as_the_page_and_unknown_to_pyplot(name):
    with style.use(name):
        drawn, axes = style.figure(2, 3, height=0.38, sharex=True)
        page = matplotlib.rcParams["figure.figsize"]
    assert axes.shape == (2, 3)
    assert drawn.get_size_inches() == pytest.approx(page)
    assert matplotlib.pyplot.get_fignums() == []


def test_text_on_a_heat_map_contrasts_with_every_colour():
    for rgba in matplotlib.colormaps["viridis"](np.linspace(0, 1, 64)):
        luminance = 0.2126729, 0.7151522, 0.0721750
        behind = linear_rgb(rgba) @ luminance
        text = linear_rgb(style.text_colour(rgba)) @ luminance
        # What the guidelines ask for where text is small.
        assert (max(behind, text) + 0.05) / (min(behind, text) + 0.05) > 4.5


@pytest.mark.parametrize("name", style.STYLES)
def test_styles_are_in_the_package_and_called_as_they_say(name):
    text = (resources.files("linattn_ref.experiments.publishing") / f"{name}.mplstyle").read_text(encoding="utf-8")
    (called,) = re.findall(r'matplotlib\.style\.use\("(.+)"\)', text)
    with matplotlib.rc_context():
        matplotlib.style.use(called)


@pytest.mark.parametrize("table", [style.MECHANISMS, style.FEATURES, style.ROLES])
def test_one_colour_has_one_meaning(table):
    assert len(set(table.values())) == len(table)
    for colour in table.values():
        assert min(linear_rgb(colour)) < 0.5  # seen on white
