// Fills a Buffer page by page in a named function: code compiled just in time by the JavaScript engine.
//
// Run: node [--perf-basic-prof] node_touch.js [--mib N] [--hold-ms N] [--time]
// With --perf-basic-prof node writes /tmp/perf-PID.map, which names the function `touchBuffer` (and an isolate-*.log in
// the current folder).
//
// Known answer. A buffer of N MiB (N from 1) from Buffer.alloc: zeroed by calloc, so its pages are fresh. N MiB / 4096
// pages, one more when it does not start at a page's first byte, are touched first by the main thread at the line
// marked below: the first ones by the interpreter's built-in store, the rest by compiled code of touchBuffer.
// The engine itself touches many other pages, on several threads.
"use strict";

const PAGE_BYTES = 4096;

function option(name, fallback) {
  const at = process.argv.indexOf(name);
  return at < 0 ? fallback : Number(process.argv[at + 1]);
}

function touchBuffer(buffer) {
  for (let at = 0; at < buffer.length; at += PAGE_BYTES) {
    buffer[at] = 1; // touch: here
  }
}

const begin = process.hrtime.bigint();
const bytes = option("--mib", 64) * 1024 * 1024;
const buffer = Buffer.alloc(bytes);
touchBuffer(buffer);
let sum = 0;
for (let at = 0; at < bytes; at += PAGE_BYTES) sum += buffer[at];
if (sum !== bytes / PAGE_BYTES) {
  console.error(`error: the sum is ${sum}`);
  process.exit(1);
}
console.log(`node_touch pages=${bytes / PAGE_BYTES}`);
if (process.argv.includes("--time")) {
  console.error(`seconds=${(Number(process.hrtime.bigint() - begin) / 1e9).toFixed(6)}`);
}
setTimeout(() => {}, option("--hold-ms", 0));
