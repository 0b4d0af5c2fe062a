// Milliseconds of each row of a digit, in the page of the networks.
(attention) => {
  const { network } = writers.find(({ network }) => network.attention === attention), random = new Random(0);
  network.reset();
  const rows = [];
  let token = network.begin;
  for (let row = 0; row < 28; row++) {
    const begun = performance.now();
    for (let i = 0; i < 28; i++) token = pick(network.step(token), 1, random);
    rows.push(performance.now() - begun);
  }
  return rows;
}
