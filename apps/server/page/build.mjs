// Builds dist/index.html: script and style of src/ inlined into src/index.html.
// With --check changes nothing and fails if dist/index.html is not what the sources give.

import { build } from 'esbuild';
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const folder = fileURLToPath(new URL('.', import.meta.url));
const target = `${folder}dist/index.html`;
const kMaxBytes = 300_000;

// Text of models must never be parsed as HTML, so nothing in the sources may do that.
const forbidden = /\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval|new Function)\b/;
for (const name of readdirSync(`${folder}src`)) {
  const lines = readFileSync(`${folder}src/${name}`, 'utf8').split('\n');
  if (lines.length > 800) fail(`src/${name} has more than 800 lines`);
  lines.forEach((line, i) => {
    if (forbidden.test(line)) fail(`src/${name}:${i + 1} parses text as HTML or code`);
  });
}

async function bundle(entry, loader = {}) {
  const result = await build({
    entryPoints: [`${folder}src/${entry}`],
    bundle: true, minify: true, write: false, target: 'es2022', format: 'iife', charset: 'ascii', loader,
    legalComments: 'none', logLevel: 'warning',
  });
  return result.outputFiles[0].text.trim();
}

const script = (await bundle('main.ts')).replaceAll('</script', '<\\/script');
const style = await bundle('style.css');
const hash = createHash('sha256').update(script).digest('base64');
const policy = "default-src 'none'; " + `script-src 'sha256-${hash}'; style-src 'unsafe-inline'; connect-src 'self'; ` +
  "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const page = readFileSync(`${folder}src/index.html`, 'utf8')
  .replace('{{policy}}', () => policy)
  .replace('{{style}}', () => style)
  .replace('{{script}}', () => script);

if (Buffer.byteLength(page) > kMaxBytes) fail(`the page has ${Buffer.byteLength(page)} bytes; ${kMaxBytes} are allowed`);
if (process.argv[2] === '--check') {
  let built = '';
  try {
    built = readFileSync(target, 'utf8');
  } catch { /* reported as out of date */ }
  if (built !== page) fail("dist/index.html is out of date; run 'npm run build'");
} else {
  mkdirSync(`${folder}dist`, { recursive: true });
  writeFileSync(target, page);
  console.log(`dist/index.html: ${Buffer.byteLength(page)} bytes`);
}

function fail(message) {
  console.error(`build: ${message}`);
  process.exit(1);
}
