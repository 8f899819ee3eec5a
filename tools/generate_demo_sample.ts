/**
 * Writes the demo's sample input: where the sun stands over Greenwich in each hour of 2025, by the low-precision formulas of
 * the Astronomical Almanac. Real data that anyone can check, the same on every machine.
 *
 *   deno run -A tools/generate_demo_sample.ts
 *
 * @module
 */
import { writeFileSync } from "node:fs";

const HOURS = 365 * 24;
const LATITUDE = 51.4769;
const DAYS_FROM_J2000 = (Date.UTC(2025, 0, 1) - Date.UTC(2000, 0, 1, 12)) / 86_400_000;
const radians = (degrees: number): number => degrees * Math.PI / 180;
const degrees = (radians: number): number => radians * 180 / Math.PI;
const circle = (angle: number): number => ((angle % 360) + 360) % 360;

function sunAt(hour: number): { declination: number; elevation: number } {
  const days = DAYS_FROM_J2000 + hour / 24;
  const anomaly = radians(circle(357.528 + 0.9856003 * days));
  const meanLongitude = circle(280.46 + 0.9856474 * days);
  const longitude = radians(meanLongitude + 1.915 * Math.sin(anomaly) + 0.02 * Math.sin(2 * anomaly));
  const obliquity = radians(23.439 - 0.0000004 * days);
  const declination = Math.asin(Math.sin(obliquity) * Math.sin(longitude));
  const rightAscension = degrees(Math.atan2(Math.cos(obliquity) * Math.sin(longitude), Math.cos(longitude)));
  const siderealTime = circle(280.46062 + 360.98564737 * days);
  const hourAngle = radians(siderealTime - rightAscension);
  const latitude = radians(LATITUDE);
  const elevation = Math.asin(
    Math.sin(latitude) * Math.sin(declination) + Math.cos(latitude) * Math.cos(declination) * Math.cos(hourAngle),
  );
  return { declination: degrees(declination), elevation: degrees(elevation) };
}

const lines = ["utc,declination,elevation"];
for (let hour = 0; hour < HOURS; hour++) {
  const { declination, elevation } = sunAt(hour);
  const time = new Date(Date.UTC(2025, 0, 1, hour)).toISOString().slice(0, 13);
  lines.push(`${time},${declination.toFixed(2)},${elevation.toFixed(2)}`);
}
// An odd length shows that nothing needs to be aligned: the last newline stays or goes
const text = lines.join("\n");
writeFileSync(new URL("../src/cli/demo/sample.csv", import.meta.url), text.length % 2 === 1 ? text : `${text}\n`);
