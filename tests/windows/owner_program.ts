/** What handle_test.ts starts: owns an event's handle and says who it is. */
import process from "node:process";
import { ownIdentity } from "../../src/os/process.ts";
import { createEvent, isSet } from "./kernel32.ts";
import { connectTo } from "./pipe.ts";

const event = createEvent();
const peer = await connectTo(process.argv[2]);
peer.send({ identity: ownIdentity(), event });
await peer.receive();
peer.send({ isSet: isSet(event) });
await peer.receive();
process.exit(0);
