// Runs in a browser, with the bundle of entry.ts as `bench`. Browser timers are coarse, so a sample has many rounds.
const ROUNDS = 20;
const SAMPLES = 9;

function sampled(work) {
  const times = [];
  for (let sample = 0; sample < SAMPLES; sample += 1) {
    const began = performance.now();
    for (let round = 0; round < ROUNDS; round += 1) work(sample * ROUNDS + round);
    times.push((performance.now() - began) / ROUNDS);
  }
  return times;
}

function heatmap() {
  const colours = ["active", "idle", "saving", "recovering", "failed"];
  const cell = (index, turn) => ({
    key: `w${index}`,
    group: `host${index >> 3}`,
    colour: colours[(index * 7 + turn) % 5],
    strength: 1,
  });
  const inks = Object.fromEntries(colours.map((name, index) => [name, `rgb(${index * 50}, 120, 90)`]));
  inks.page = "rgb(13, 15, 18)";
  let cells = Array.from({ length: 10_000 }, (_, index) => cell(index, 0));
  const layout = bench.layOut(cells, 1200);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [1200, layout.height];
  const context = canvas.getContext("2d");
  return sampled((turn) => {
    const after = cells.slice();
    for (let number = 0; number < 500; number += 1) {
      const index = (number * 19 + turn * 7) % 10_000;
      after[index] = cell(index, turn + 1);
    }
    bench.drawCells(context, layout, after, bench.differing(cells, after), inks);
    cells = after;
  });
}

function search() {
  const lines = Array.from({ length: 100_000 }, (_, index) => ({
    message: `step ${index}: loss ${(1 / (1 + index)).toFixed(6)} 812.3 samples/s on worker-${index % 64}`,
  }));
  const timed = (words, regex) => {
    const times = [];
    for (let sample = 0; sample < SAMPLES; sample += 1) {
      const search = new bench.IncrementalSearch((line) => line.message);
      const began = performance.now();
      search.run(lines, words, regex);
      times.push(performance.now() - began);
    }
    return times;
  };
  return { text: timed("WORKER-63", false), regex: timed("step 9\\d+9: loss 0\\.0000", true) };
}

({ heatmap: heatmap(), search: search() });
