import { screen } from "@testing-library/react";
import { useState } from "react";
import { expect, it } from "vitest";
import { show } from "../testing/show";
import { Segments } from "./controls";

function Themes() {
  const [value, setValue] = useState("auto");
  return <Segments label="Theme" value={value} onChange={setValue} options={[["auto", "auto"], ["light", "light"], ["dark", "dark"]]} />;
}

it("moves through a radio group with the arrow keys and wraps around", async () => {
  const { user } = show(<Themes />);
  await user.tab();
  expect(screen.getByRole("radio", { name: "auto" })).toBe(document.activeElement);
  await user.keyboard("{ArrowRight}");
  expect(screen.getByRole<HTMLInputElement>("radio", { name: "light" }).checked).toBe(true);
  await user.keyboard("{ArrowLeft}{ArrowLeft}");
  expect(screen.getByRole<HTMLInputElement>("radio", { name: "dark" }).checked).toBe(true);
});

it("is one tab stop", async () => {
  const { user } = show(<><Themes /><button type="button">after</button></>);
  await user.tab();
  await user.tab();
  expect(screen.getByRole("button", { name: "after" })).toBe(document.activeElement);
});
