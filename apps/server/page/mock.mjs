// A server with the interface of `imago serve` and canned answers, for work on the page and its tests.
//   node mock.mjs [PORT]       KEY=secret asks for that key; DELAY=20 milliseconds between tokens
// The text of the last message chooses the answer: see `answer_to`.

import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';

const page = fileURLToPath(new URL('dist/index.html', import.meta.url));
const kFormats = ['q8_0', 'q6_k', 'q5_k', 'q4_k', 'q3_k', 'q2_k'];
const kBits = { bf16: 16, q8_0: 8.5, q6_k: 6.5625, q5_k: 5.5, q4_k: 4.5, q3_k: 3.4375, q2_k: 2.625 };

const kMarkdown = `## What quantization keeps

Weights in **4 bits** lose little, because *errors of many weights cancel*. Three things matter:

1. the **scale** of each group,
2. which matrices get more bits:
   - \`attn_v\` and \`ffn_down\` are sensitive
   - embeddings are not
3. the calibration text.

| type | bits | size |
|:-----|-----:|-----:|
| q8_0 | 8.50 | 1.06 GiB |
| q4_k | 4.50 | 0.56 GiB |

\`\`\`python
def dequantize(scale: float, codes: list[int]) -> list[float]:
    # one scale for 32 weights
    return [scale * code for code in codes]
\`\`\`

> Measure it: perplexity alone hides changes that divergence shows.

More in [the paper](https://example.org/paper).`;

const kStory = 'The lighthouse keeper wound the clock each evening, although nobody on the island needed the time. ' +
  'Ships had stopped passing years ago, and the gulls kept hours of their own.';
const kStoryRough = 'The lighthouse keeper wound the clock each evening, although nobody in the village needed a light. ' +
  'Boats had stopped coming years ago, and the birds kept hours of their own.';
const kHostile = 'Before <img src=x onerror="window.hacked=1"> <script>window.hacked=1</script> ' +
  '[click](javascript:window.hacked=1) [data](data:text/html,x) ![pixel](https://example.org/pixel.png) ' +
  '`<b>code</b>`\n\n```html\n<script>window.hacked=1</script>\n```\n\n<iframe src="https://example.org"></iframe> after';

function answer_to(body) {
  const last = body.messages.at(-1);
  const prompt = (last.role === 'assistant' ? body.messages.at(-2)?.content : last.content) ?? '';
  const is_rough = /@q[23]_k$/.test(body.model);
  const answer = { reasoning: '', text: '', delay: 1 };
  if (/hostile/.test(prompt)) answer.text = kHostile;
  else if (/long/.test(prompt)) answer.text = Array.from({ length: 400 }, (_, i) => `Sentence ${i + 1} of many.`).join(' '), answer.delay = 5;
  else if (/reason/.test(prompt)) answer.reasoning = 'The question is simple. The answer follows.', answer.text = 'It is 42.';
  else if (/story|lighthouse/.test(prompt)) answer.text = is_rough ? kStoryRough : kStory;
  else if (/echo/.test(prompt)) answer.text = JSON.stringify(body);
  else answer.text = kMarkdown;
  if (last.role === 'assistant' && body.continue_final_message) {
    answer.reasoning = '';
    answer.text = answer.text.startsWith(last.content) ? answer.text.slice(last.content.length) : ' and so on.';
  }
  return answer;
}

/** Pieces like those of a tokenizer: words with the space before them, and marks. */
const pieces_of = (text) => text.match(/ ?[\p{L}\p{N}_]{1,9}|\n+| +|[^\p{L}\p{N}_\s]+/gu) ?? [];

/** The same probabilities for the same text, so that pictures and tests repeat. */
function logprobs_of(piece, index) {
  let hash = index * 2654435761;
  for (const c of piece) hash = (Math.imul(hash, 31) + c.codePointAt(0)) >>> 0;
  const p = [0.99, 0.97, 0.93, 0.88, 0.99, 0.71, 0.95, 0.42, 0.98, 0.16][hash % 10];
  const bytes = (text) => [...Buffer.from(text)];
  const others = [' a', ' the', ' often', ','].filter((text) => text !== piece).slice(0, 4);
  const top = [[piece, p], ...others.map((text, i) => [text, (1 - p) * [0.5, 0.25, 0.12, 0.05][i]])].sort((a, b) => b[1] - a[1]);
  const entry = ([token, q]) => ({ token, logprob: Math.log(q), bytes: bytes(token) });
  return { ...entry([piece, p]), top_logprobs: top.map(entry) };
}

export function make_mock({ key = '', delay = null, has_imago = true } = {}) {
  const parameters = 1_235_814_400;
  const roles = () => [
    ['embedding', 1, 262_668_288, 'q6_k'], ['query', 16, 67_108_864, 'q4_k'], ['key', 16, 16_777_216, 'q4_k'],
    ['value', 16, 16_777_216, 'q6_k'], ['attention_output', 16, 67_108_864, 'q4_k'], ['gate', 16, 268_435_456, 'q4_k'],
    ['up', 16, 268_435_456, 'q4_k'], ['down', 8, 134_217_728, 'q4_k'], ['down', 8, 134_217_728, 'q6_k'],
  ].map(([role, matrices, weights, type]) => ({ role, type, matrices, weights, bytes: Math.round(weights * kBits[type] / 8) }));
  const size = (model) => model.roles.reduce((sum, row) => sum + row.bytes, 0);
  const models = new Map([['llama-3.2-1b-instruct', { type: 'q4_k', roles: roles(), undo: [] }], ['qwen3-0.6b', { type: 'q8_0', roles: roles(), undo: [] }]]);
  const running = new Map();
  const log = [];  // bodies of requests, for tests
  const totals = { requests: 0, cancelled: 0, prompt_tokens: 0, cached_tokens: 0, generated_tokens: 0, steps: 0 };
  const begun = Date.now();
  let next = 1;

  function variant(id) {
    if (models.has(id)) return models.get(id);
    const [base, type] = id.split('@');
    if (!models.has(base) || !kBits[type]) return null;
    const made = { type, undo: [], roles: roles().map((row) => ({ ...row, type, bytes: Math.round(row.weights * kBits[type] / 8) })) };
    models.set(id, made);
    return made;
  }

  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://localhost');
    const json = (status, value) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(value));
    const fail = (status, message) => json(status, { error: { message, type: 'error' } });
    if (url.pathname === '/' && request.method === 'GET') {
      response.writeHead(200, {
        'Content-Type': 'text/html; charset=utf-8', 'X-Content-Type-Options': 'nosniff', 'X-Frame-Options': 'DENY',
        'Content-Security-Policy': "default-src 'none'; script-src 'unsafe-inline'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
      }).end(readFileSync(page));
      return;
    }
    if (key && request.headers.authorization !== `Bearer ${key}`) return fail(401, 'a key is needed');
    let text = '';
    for await (const part of request) text += part;
    const body = text ? JSON.parse(text) : {};
    if (body.messages) log.push(body);

    if (url.pathname === '/v1/models') {
      return json(200, { object: 'list', data: [...models].map(([id, model]) => ({ id, object: 'model', created: 0, owned_by: 'imago',
        meta: { type: model.type, bytes: size(model), parameters, context: 8192, architecture: 'llama', loaded: true } })) });
    }
    if (url.pathname.startsWith('/imago/') && !has_imago) return fail(404, 'no such endpoint');
    if (url.pathname === '/imago/state') {
      const used = [...running.values()].reduce((sum, r) => sum + Math.ceil((r.prompt_tokens + r.generated) / 64), 0);
      return json(200, { version: '0.9.0', uptime_seconds: (Date.now() - begun) / 1000, connections: 2, models: [...models].slice(0, 1).map(([id, model]) => ({
        id, loaded: true, type: model.type, bytes: size(model), parameters, context: 8192, architecture: 'llama',
        running: [...running.values()].map((r) => ({ ...r, seconds: (Date.now() - r.begun) / 1000 })), waiting: 0, page_tokens: 64, pages: 1024,
        pages_used: used, pages_cached: Math.min(1024 - used, 40 + totals.requests), last_batch: running.size, refused: 0, preemptions: 0,
        prompt_seconds: totals.prompt_tokens / 2400, generate_seconds: totals.generated_tokens / 48, ...totals })) });
    }
    if (url.pathname === '/imago/types') {
      const model = variant(url.searchParams.get('model') ?? '');
      if (!model) return fail(404, 'no such model');
      return json(200, { model: url.searchParams.get('model'), type: model.type, bytes: size(model), can_undo: model.undo.length > 0, formats: kFormats, roles: model.roles });
    }
    if (url.pathname === '/imago/morph' || url.pathname === '/imago/undo') {
      const model = variant(body.model);
      if (!model) return fail(404, 'no such model');
      const before = size(model);
      let changed = 0;
      if (url.pathname === '/imago/undo') {
        if (model.undo.length === 0) return fail(400, 'there is nothing to undo');
        model.roles = model.undo.pop();
        changed = 16;
      } else {
        if (!kFormats.includes(body.type)) return fail(400, `unknown type '${body.type}'`);
        const groups = { ffn: ['gate', 'up', 'down'], attention: ['query', 'key', 'value', 'attention_output'] };
        const hit = model.roles.filter((row) => (groups[body.pattern] ?? [body.pattern]).includes(row.role));
        if (hit.length === 0) return fail(400, `'${body.pattern}' matches no matrix`);
        model.undo.push(model.roles);
        model.roles = model.roles.map((row) => (hit.includes(row) ? { ...row, type: body.type, bytes: Math.round(row.weights * kBits[body.type] / 8) } : row));
        changed = hit.reduce((sum, row) => sum + row.matrices, 0);
      }
      return json(200, { changed, misfits: [], bytes_before: before, bytes_after: size(model), type: model.type, seconds: 0.12 });
    }
    if (url.pathname !== '/v1/chat/completions') return fail(404, 'no such endpoint');

    const model = variant(body.model);
    if (!model) return fail(404, `no model '${body.model}'`);
    const prompt = body.messages.map((message) => message.content).join(' ');
    if (/fail now/.test(body.messages.at(-1).content)) return fail(503, 'the server is too busy');
    const answer = answer_to(body);
    const state = { id: `r${next++}`, prompt_tokens: Math.ceil(prompt.length / 4) + 8, prompt_done: 0, generated: 0, max_tokens: body.max_tokens ?? 2048, begun: Date.now() };
    state.prompt_done = state.prompt_tokens;
    running.set(state.id, state);
    totals.requests++;
    totals.prompt_tokens += state.prompt_tokens;
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    const send = (value) => response.write(`data: ${JSON.stringify({ object: 'chat.completion.chunk', model: body.model, ...value })}\n\n`);
    let is_gone = false;
    response.on('close', () => (is_gone = true));
    const all = [...pieces_of(answer.reasoning).map((piece) => ['reasoning_content', piece]), ...pieces_of(answer.text).map((piece) => ['content', piece])];
    send({ choices: [{ index: 0, delta: { role: 'assistant' }, finish_reason: null }] });
    let finish = 'stop';
    for (const [index, [name, piece]] of all.entries()) {
      if (is_gone) break;
      if (state.generated >= state.max_tokens) {
        finish = 'length';
        break;
      }
      if (/break off/.test(prompt) && index === 5) {
        send({ error: { message: 'out of cache pages' } });
        is_gone = true;
        break;
      }
      state.generated++;
      totals.generated_tokens++;
      const logprobs = body.logprobs && name === 'content' ? { content: [logprobs_of(piece, index)] } : null;
      send({ choices: [{ index: 0, delta: { [name]: piece }, logprobs, finish_reason: null }] });
      await new Promise((resolve) => setTimeout(resolve, delay ?? answer.delay));
    }
    running.delete(state.id);
    if (is_gone) totals.cancelled++;
    const speed = 21e9 / size(model);
    send({ choices: [{ index: 0, delta: {}, finish_reason: finish }] });
    send({ choices: [], usage: { prompt_tokens: state.prompt_tokens, completion_tokens: state.generated, total_tokens: 0, prompt_tokens_details: { cached_tokens: 64 } },
      timings: { cache_n: 64, prompt_n: state.prompt_tokens, prompt_ms: 1, prompt_per_second: 2412.5, predicted_n: state.generated, predicted_ms: 1, predicted_per_second: speed } });
    response.end('data: [DONE]\n\n');
  });
  return { server, log, listen: (port = 0) => new Promise((resolve) => server.listen(port, '127.0.0.1', () => resolve(`http://127.0.0.1:${server.address().port}`))) };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = make_mock({ key: process.env.KEY ?? '', delay: process.env.DELAY ? Number(process.env.DELAY) : null });
  console.log(await mock.listen(Number(process.argv[2] ?? 8081)));
}
