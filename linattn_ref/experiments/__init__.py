"""What is measured and drawn. A figure is a module: ``compute(...)`` gives the results, ``draw(results)`` the figure.

Figures         ``spectrum`` (the main job), ``eckart_young``, ``johnson_lindenstrauss``, ``low_rank``,
                ``linear_self_attention``, ``linformer``, ``linformer_savings``, ``attention_cost``,
                ``feature_maps``, ``random_features``, ``random_features_attention``, ``causal_cost``, ``rewind``,
                ``decoding``, ``rfa_decay``, ``pattern_pictures``, ``pattern_graphs``, ``moving_content``,
                ``lsh_recall``, ``nystromformer``, ``pinv_convergence``, ``comparison``, ``resources``,
                ``cuda_occupancy`` (compiled, not run); a figure's own parts begin with its name: ``spectrum_job``,
                ``comparison_ways``
``benches``     comparisons with other packages, and with a bare loop: figures too
``measuring``   what they measure with: time, memory, operations, the heads of a pretrained network
``publishing``  how they appear: in which style, beside which numbers, in the gallery, in README, in a notebook
"""
