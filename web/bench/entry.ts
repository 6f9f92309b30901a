/** The code that benchmarks/bench_web.py measures in a browser, bundled without the rest of the page. */
export { differing, drawCells, layOut } from "../src/draw/heatmap";
export { IncrementalSearch } from "../src/lib/search";
