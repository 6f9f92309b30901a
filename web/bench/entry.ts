/** What benchmarks/bench_web.py measures inside a browser, bundled apart from the page. */
export { differing, drawCells, layOut } from "../src/draw/heatmap";
export { Sieve } from "../src/lib/sieve";
