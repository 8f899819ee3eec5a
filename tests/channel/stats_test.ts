import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { IpcChannel, IpcServer } from "../../mod.ts";

test("stats: both ends count the socket's bytes alike, greeting and farewell included", async () => {
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-test-"));
  try {
    await using server = IpcServer.listen(join(folder, "socket"));
    await using client = await IpcChannel.connect(server.path);
    await using channel = (await server.accept())!;
    const greeting = client.stats().sentBytes;
    assert(greeting > 100, `${greeting}`);
    await client.send({ data: "x".repeat(10_000) });
    await channel.receive();
    assert(channel.stats().receivedBytes > greeting + 10_000);
    await Promise.all([client.closeAsync(), channel.closed]);
    await channel.closeAsync();
    const [ours, theirs] = [client.stats(), channel.stats()];
    assertEquals([ours.sentBytes, ours.receivedBytes], [theirs.receivedBytes, theirs.sentBytes]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
