import { screen } from "@testing-library/react";
import { useState } from "react";
import { expect, it } from "vitest";
import { show } from "../testing/show";
import { Drawer } from "./drawer";

function Row() {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>row</button>
      {open && <Drawer title="step-1" close={() => setOpen(false)}>details</Drawer>}
    </>
  );
}

it("takes the focus when it opens and gives it back when it closes", async () => {
  const { user } = show(<Row />);
  await user.click(screen.getByRole("button", { name: "row" }));
  expect(screen.getByRole("complementary", { name: "step-1" }).contains(document.activeElement)).toBe(true);
  await user.click(screen.getByRole("button", { name: "Close" }));
  expect(screen.getByRole("button", { name: "row" })).toBe(document.activeElement);
});

it("closes on Escape and gives the focus back", async () => {
  const { user } = show(<Row />);
  await user.click(screen.getByRole("button", { name: "row" }));
  await user.keyboard("{Escape}");
  expect(screen.queryByText("details")).toBeNull();
  expect(screen.getByRole("button", { name: "row" })).toBe(document.activeElement);
});
