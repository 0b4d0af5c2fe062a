"""What is measured and drawn. A figure is a module: ``compute(...)`` gives the results, ``draw(results)`` the figure.

Figures           ``spectrum`` (the main job), ``eckart_young``, ``johnson_lindenstrauss``, ``low_rank``,
                  ``linear_self_attention``, ``linformer``, ``linformer_savings``, ``attention_cost``,
                  ``feature_maps``, ``random_features``, ``random_features_attention``, ``causal_cost``, ``rewind``,
                  ``decoding``, ``rfa_decay``, ``pattern_pictures``, ``pattern_graphs``, ``moving_content``,
                  ``lsh_recall``, ``nystromformer``, ``pinv_convergence``, ``comparison``, ``resources``,
                  ``cuda_occupancy`` (compiled, not run)
Comparisons       ``bench_*``: with other packages, with a bare loop
What they share   ``heads`` (of a pretrained network), ``counting``, ``timing``, ``memory``, ``scaling``,
                  ``measurements``; a figure's own parts begin with its name: ``spectrum_job``, ``comparison_ways``
How they appear   ``style`` (the two looks), ``record`` (a figure beside its numbers), ``atomic`` (all files or none),
                  ``gallery`` (draws them all), ``tables`` (README's), ``chapter`` (what notebooks share)
"""
