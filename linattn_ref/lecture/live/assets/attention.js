// One head, token by token, in both orders of the brackets.
//
//   softmax:  a_j = exp(q . k_j / sqrt D),   out = sum_j a_j v_j / sum_j a_j                 a row of N weights
//   linear:   S += phi(k) v^T,  Z += phi(k),   out = phi(q)^T S / (phi(q)^T Z + eps)         C x M numbers
"use strict";

const phi = (x) => (x > 0 ? x + 1 : Math.exp(x));
const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);

// Of the head's q, k (N, D) and v (N, M): for each token what either way has made of it.
function attend({ q, k, v }) {
  const depth = k[0].length, width = v[0].length;
  const s = Array.from({ length: depth }, () => new Array(width).fill(0)), z = new Array(depth).fill(0);
  return q.map((query, i) => {
    const scores = k.slice(0, i + 1).map((key) => dot(query, key) / Math.sqrt(depth)), most = Math.max(...scores);
    const raised = scores.map((score) => Math.exp(score - most)), total = raised.reduce((a, b) => a + b);
    const weights = raised.map((each) => each / total);

    const phiK = k[i].map(phi), phiQ = query.map(phi);
    phiK.forEach((feature, c) => {
      v[i].forEach((value, m) => (s[c][m] += feature * value));
      z[c] += feature;
    });
    const divisor = dot(phiQ, z) + 1e-6;
    return {
      weights, // the row of softmax
      softmax: v[i].map((_, m) => weights.reduce((sum, weight, j) => sum + weight * v[j][m], 0)),
      phiK, phiQ,
      s: s.map((row) => [...row]),
      z: [...z],
      linear: v[i].map((_, m) => phiQ.reduce((sum, feature, c) => sum + feature * s[c][m], 0) / divisor),
      never: k.slice(0, i + 1).map((key) => dot(phiQ, key.map(phi)) / divisor), // the row that linear attention does not make
    };
  });
}
