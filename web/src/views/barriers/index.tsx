import { Page } from "../../ui/page";

export default function View() {
  return <Page title="barriers">{null}</Page>;
}
