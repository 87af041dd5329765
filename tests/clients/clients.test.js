// OpenAI's, Anthropic's and Ollama's own clients chat, stream, embed and cancel.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

import { key, pause, start } from "./server.js";

let server, openai, anthropic, ollama;
const model = "bundled";
const messages = [{ role: "user", content: "Up betimes, and to the office" }];
const tokens = 12;
/** Text of all clients for `messages`, which is the same at temperature 0. */
let expected;

before(async () => {
  server = await start();
  openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: server.url, apiKey: key, maxRetries: 0 });
  ollama = new Ollama({ host: server.url, headers: { Authorization: `Bearer ${key}` } });
  const reply = await openai.chat.completions.create({ model, messages, max_tokens: tokens, temperature: 0 });
  expected = reply.choices[0].message.content;
  assert.equal(reply.usage.completion_tokens, tokens);
});

after(async () => assert.equal(await server.stop(), 0));

/** Runs what cancels a request and expects that the server notices. */
async function cancels(run) {
  const before_ = await server.metric("requests_cancelled_total");
  await run();
  for (let i = 0; i < 200; ++i) {
    const noticed = (await server.metric("requests_cancelled_total")) === before_ + 1;
    if (noticed && (await server.metric("requests_processing")) === 0) return;
    await pause(25);
  }
  assert.fail("the request was not cancelled");
}

function assertNear(a, b) {
  assert.equal(a.length, b.length);
  for (let i = 0; i < a.length; ++i) assert.ok(Math.abs(a[i] - b[i]) < 1e-6, `${i}: ${a[i]} and ${b[i]}`);
}
const length = (vector) => Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));

// ---- OpenAI

test("openai: models", async () => {
  const names = [];
  for await (const one of openai.models.list()) names.push(one.id);
  assert.deepEqual(names, [model]);
});

test("openai: a chat, streamed", async () => {
  const stream = await openai.chat.completions.create({
    model, messages, max_tokens: tokens, temperature: 0, stream: true, stream_options: { include_usage: true },
  });
  let text = "", reason, usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    reason ??= chunk.choices[0]?.finish_reason;
    usage ??= chunk.usage;
  }
  assert.equal(text, expected);
  assert.equal(reason, "length");
  assert.equal(usage.completion_tokens, tokens);
  assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
});

test("openai: the helper for streams", async () => {
  const runner = openai.chat.completions.stream({ model, messages, max_tokens: tokens, temperature: 0 });
  assert.equal(await runner.finalContent(), expected);
});

test("openai: a text", async () => {
  const body = { model, prompt: "Up betimes", max_tokens: 5, temperature: 0, logprobs: 2 };
  const whole = await openai.completions.create(body);
  assert.equal(whole.usage.completion_tokens, 5);
  let text = "";
  for await (const chunk of await openai.completions.create({ ...body, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

test("openai: embeddings", async () => {
  const input = ["a ship", "a boat", "an office"];
  const decoded = await openai.embeddings.create({ model, input }); // base64, which the client decodes
  const floats = await openai.embeddings.create({ model, input, encoding_format: "float" });
  assert.equal(decoded.data.length, 3);
  for (let i = 0; i < 3; ++i) {
    assertNear(decoded.data[i].embedding, floats.data[i].embedding);
    assert.ok(Math.abs(length(decoded.data[i].embedding) - 1) < 1e-5);
  }
  assert.equal(decoded.usage.total_tokens, decoded.usage.prompt_tokens);
});

test("openai: responses", async () => {
  const body = { model, input: messages, max_output_tokens: tokens, temperature: 0 };
  const whole = await openai.responses.create(body);
  assert.equal(whole.output_text, expected);
  assert.equal(whole.status, "incomplete");
  assert.equal(whole.usage.output_tokens, tokens);
  const types = [];
  let text = "";
  for await (const event of await openai.responses.create({ ...body, stream: true })) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, expected);
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.incomplete");
  const final = await openai.responses.stream(body).finalResponse();
  assert.equal(final.output_text, expected);
});

test("openai: cancelling", async () => {
  const body = { model, messages, max_tokens: 450, temperature: 0, ignore_eos: true };
  await cancels(async () => {
    const stream = await openai.chat.completions.create({ ...body, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) break; // which aborts the request
    }
  });
  await cancels(async () => {
    const controller = new AbortController();
    const reply = openai.chat.completions.create(body, { signal: controller.signal });
    while ((await server.metric("requests_processing")) === 0) await pause(1);
    controller.abort();
    await assert.rejects(reply, OpenAI.APIUserAbortError);
  });
});

test("openai: errors", async () => {
  const wrong = openai.chat.completions.create({ model, messages, temperature: "hot" });
  await assert.rejects(wrong, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  const long = openai.completions.create({ model, prompt: "word ".repeat(2000) });
  await assert.rejects(long, (error) => error.status === 400 && error.type === "exceed_context_size_error");
  const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "another", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

// ---- Anthropic

test("anthropic: a message, whole and streamed", async () => {
  const body = { model, messages, max_tokens: tokens, temperature: 0 };
  const whole = await anthropic.messages.create(body);
  assert.equal(whole.content[0].text, expected);
  assert.equal(whole.stop_reason, "max_tokens");
  assert.equal(whole.usage.output_tokens, tokens);
  let text = "";
  const stream = anthropic.messages.stream(body).on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  assert.equal(text, expected);
  assert.equal(final.content[0].text, expected);
  assert.equal(final.stop_reason, "max_tokens");
  assert.deepEqual(final.usage.output_tokens, tokens);
  const read = final.usage.input_tokens + final.usage.cache_read_input_tokens;
  const counted = await anthropic.messages.countTokens({ model, messages });
  assert.equal(counted.input_tokens, read);
});

test("anthropic: a system message, blocks and stop sequences", async () => {
  const body = {
    model, max_tokens: 40, temperature: 0, system: [{ type: "text", text: "Answer in verse." }],
    messages: [{ role: "user", content: [{ type: "text", text: "Who art thou?" }] }],
  };
  const whole = await anthropic.messages.create(body);
  const text = whole.content[0].text;
  const stop = text.slice(text.length / 2, text.length / 2 + 2);
  const stopped = await anthropic.messages.create({ ...body, stop_sequences: [stop] });
  assert.equal(stopped.stop_reason, "stop_sequence");
  assert.equal(stopped.stop_sequence, stop);
  assert.equal(stopped.content[0].text, text.slice(0, text.indexOf(stop)));
});

test("anthropic: cancelling", () =>
  cancels(async () => {
    const body = { model, messages, max_tokens: 450, temperature: 0, ignore_eos: true, stream: true };
    for await (const event of await anthropic.messages.create(body)) {
      if (event.type === "content_block_delta") break;
    }
  }));

test("anthropic: errors", async () => {
  const tools = [{ name: "weather", input_schema: { type: "object" } }];
  const unsupported = anthropic.messages.create({ model, messages, max_tokens: 5, tools });
  await assert.rejects(unsupported, (error) => error.status === 501);
  const wrong = anthropic.messages.create({ model, messages, max_tokens: 0 });
  await assert.rejects(wrong, (error) => error instanceof Anthropic.BadRequestError && error.error.type === "error");
  const stranger = new Anthropic({ baseURL: server.url, apiKey: "another", maxRetries: 0 });
  await assert.rejects(stranger.messages.create({ model, messages, max_tokens: 5 }), Anthropic.AuthenticationError);
});

// ---- Ollama

const options = { temperature: 0, num_predict: tokens };

test("ollama: what there is", async () => {
  assert.equal((await ollama.list()).models[0].name, `${model}:latest`);
  assert.equal((await ollama.ps()).models[0].name, `${model}:latest`);
  assert.ok((await ollama.version()).version);
  assert.deepEqual((await ollama.show({ model })).details.families, ["llama"]);
});

test("ollama: a chat, whole and streamed", async () => {
  const whole = await ollama.chat({ model, messages, options });
  assert.equal(whole.message.content, expected);
  assert.equal(whole.eval_count, tokens);
  assert.equal(whole.done_reason, "length");
  let text = "";
  for await (const part of await ollama.chat({ model: `${model}:latest`, messages, options, stream: true })) {
    text += part.message.content;
  }
  assert.equal(text, expected);
});

test("ollama: a text, whole and streamed", async () => {
  const whole = await ollama.generate({ model, prompt: messages[0].content, options });
  assert.equal(whole.response, expected);
  let text = "";
  for await (const part of await ollama.generate({ model, prompt: messages[0].content, options, stream: true })) {
    text += part.response;
  }
  assert.equal(text, expected);
});

test("ollama: embeddings", async () => {
  const both = await ollama.embed({ model, input: ["a ship", "a boat"] });
  const other = await openai.embeddings.create({ model, input: "a boat" });
  assertNear(both.embeddings[1], other.data[0].embedding);
  const one = await ollama.embeddings({ model, prompt: "a boat" });
  assertNear(one.embedding.map((x) => x / length(one.embedding)), other.data[0].embedding);
});

test("ollama: cancelling", () =>
  cancels(async () => {
    const stream = await ollama.chat({ model, messages, options: { num_predict: 450, ignore_eos: true }, stream: true });
    for await (const part of stream) {
      if (part.message.content) break;
    }
    stream.abort();
  }));

test("ollama: errors", async () => {
  const wrong = ollama.chat({ model, messages, options: { temperature: "hot" } });
  await assert.rejects(wrong, (error) => error.status_code === 400 && /temperature/.test(error.message));
  const tools = [{ type: "function", function: { name: "weather" } }];
  await assert.rejects(ollama.chat({ model, messages, tools }), (error) => error.status_code === 501);
});
