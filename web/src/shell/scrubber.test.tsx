import { screen } from "@testing-library/react";
import { beforeEach, expect, it } from "vitest";
import { serve } from "../testing/server";
import { show } from "../testing/show";
import { Scrubber } from "./scrubber";

beforeEach(() => void serve({}));

it("moves the time cursor with the keyboard, and is live at the end", async () => {
  const { user } = show(<Scrubber bounds={{ from: 1000, to: 2000 }} />, "#/overview");
  const slider = screen.getByRole("slider", { name: "Moment shown" });
  expect(slider.getAttribute("aria-valuetext")).toBe("live");
  slider.focus();
  await user.keyboard("{Home}");
  expect(location.hash).toBe("#/overview?t=1000");
  await user.keyboard("{ArrowRight}");
  expect(location.hash).toBe("#/overview?t=1010");
  await user.keyboard("{End}");
  expect(location.hash).toBe("#/overview");
});

it("stays at the end of an archived run, which is never live", async () => {
  const { user } = show(<Scrubber bounds={{ from: 1000, to: 2000 }} />, "#/overview?run=train-1&t=1500");
  screen.getByRole("slider").focus();
  await user.keyboard("{End}");
  expect(location.hash).toBe("#/overview?run=train-1&t=2000");
});
